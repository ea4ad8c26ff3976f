package relay

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// maxPorts bounds the connections to ports of the sandbox that are open at once.
const maxPorts = 64

// portRelay passes on connections to ports of the sandbox. What goes through is
// looked at by nobody here; each holds a buffer each way, and what the two
// streams' windows let in.
type portRelay struct {
	hc    *http.Client
	slots chan struct{}
}

func newPortRelay(hc *http.Client) *portRelay {
	return &portRelay{hc: hc, slots: make(chan struct{}, maxPorts)}
}

func (p *portRelay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 || r.Method != http.MethodPost {
		http.Error(w, "a port is a POST with a number from 1 to 65535", http.StatusBadRequest)
		return
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	default:
		http.Error(w, fmt.Sprintf("%d connections to ports are open, which is the most", maxPorts), http.StatusTooManyRequests)
		return
	}
	// Of the request nothing is passed on but the number and the body.
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, "http://guest/port?port="+strconv.FormatUint(port, 10), r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	req.ContentLength = -1
	res, err := p.hc.Do(req)
	if err != nil {
		http.Error(w, cleanText(err.Error()), http.StatusBadGateway)
		return
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		recode(w, res)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	_ = flush.Flush() // the owner waits for it
	buf := make([]byte, 32<<10)
	for {
		n, err := res.Body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
			_ = flush.Flush()
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			// The owner must see that it is cut.
			panic(http.ErrAbortHandler)
		}
	}
}
