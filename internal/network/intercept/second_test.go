package intercept

import (
	"net/http"
	"strings"
	"testing"
)

// A good first request inside TLS opens nothing for the second one.
func TestBadSecondHeadInTLS(t *testing.T) {
	for _, tc := range badHeads {
		t.Run(tc.name, func(t *testing.T) {
			reached := make(chan string, 100)
			w := newWorld(t, addr(tlsServer(t, func(_ http.ResponseWriter, r *http.Request) { reached <- r.Host + r.RequestURI })), 443)
			got := ask(t, w.dialTLS("http/1.1"), "GET /good HTTP/1.1\r\nHost: site.test\r\n\r\n"+strings.ReplaceAll(tc.raw, "SCHEME", "https"))
			first, second, found := strings.Cut(got, "\r\n\r\n")
			if !found || !strings.HasPrefix(first, "HTTP/1.1 200 ") || !strings.Contains(first, "Content-Length: 0") {
				t.Fatalf("got %q", got)
			}
			if e := w.event(); !e.Allowed || e.Status != 200 {
				t.Errorf("%+v", e)
			}
			checkRefused(t, w, second, tc.status, false)
			if len(reached) != 1 || <-reached != "site.test/good" {
				t.Error("more than the first reached the server")
			}
		})
	}
}
