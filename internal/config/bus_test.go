package config

import (
	"strings"
	"testing"
)

func TestBus(t *testing.T) {
	for text, says := range map[string]string{
		`{}`: "",
		`{"host": "10.0.0.1", "port": 0, "tls_cert": "c", "tls_key": "k", "allow_from": ["10.0.0.0/8"]}`: "",
		`{"url": "tls://nats.example:4222", "creds": "/c"}`:                                              "",
		`{"leaf": {"url": "tls://hub.example", "creds": "/c", "ca": "/ca"}}`:                             "",
		`{"port": 70000}`:     "no port",
		`{"port": -1}`:        "no port",
		`{"tls_cert": "c"}`:   "",
		`{"creds": "/c"}`:     "which is missing",
		`{"url": "nats://x"}`: "without creds",
		`{"url": "nats://x", "creds": "/c", "host": "0.0.0.0"}`: "no meaning",
		`{"url": "nats://me:pass@x", "creds": "/c"}`:            "no user or password",
		`{"leaf": {"url": "nats://me:pass@x", "creds": "/c"}}`:  "no user or password",
		`{"leaf": {"url": "nats://x"}}`:                         "needs url and creds",
		`{"websocket": {"port": 0}}`:                            "no port",
		`{"allow_from": ["10.0.0.0/33"]}`:                       "prefix",
		`{"max_store_mb": -5}`:                                  "MiB",
		`{"hots": "x"}`:                                         "hots",
	} {
		_, err := Parse([]byte(`{"bus": `+text+`}`), "config.json")
		if (says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want one that says %q", text, err, says)
		}
		if err != nil && strings.Contains(err.Error(), "pass@") {
			t.Errorf("%s: the error has the password", text)
		}
	}
	for text, says := range map[string]string{`{"runs": -1, "tries": 5}`: "", `{"runs": -2}`: "-1 to", `{"tries": -1}`: "0 to 100"} {
		_, err := Parse([]byte(`{"dispatch": `+text+`}`), "config.json")
		if (says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestBusAddress(t *testing.T) {
	zero, seven := 0, 7
	for _, c := range []struct {
		bus        Bus
		host, port string // of the environment
		want       string
		wantPort   int
	}{
		{Bus{}, "", "", "127.0.0.1", 4222},
		{Bus{Host: "::1", Port: &seven}, "", "", "::1", 7},
		{Bus{Port: &zero}, "", "", "127.0.0.1", 0},
		{Bus{Host: "::1", Port: &seven}, "10.0.0.1", "0", "10.0.0.1", 0},
	} {
		t.Setenv("RAVI_BUS_HOST", c.host)
		t.Setenv("RAVI_BUS_PORT", c.port)
		host, port, err := c.bus.Address()
		if err != nil || host != c.want || port != c.wantPort {
			t.Errorf("%+v: %s %d, %v", c, host, port, err)
		}
	}
	t.Setenv("RAVI_BUS_PORT", "many")
	if _, _, err := (&Bus{}).Address(); err == nil || !strings.Contains(err.Error(), "RAVI_BUS_PORT") {
		t.Errorf("got %v", err)
	}
	off := false
	if (&Bus{}).Off() || !(&Bus{Enabled: &off}).Off() {
		t.Error("off is not what was said")
	}
}
