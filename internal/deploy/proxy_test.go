package deploy

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ravi/internal/porttest"
)

const outside = "ravi.example.com" // what the proxies are called

// gateway starts a daemon, with TLS if that is asked for, and gives the port of its gateway.
func gateway(t *testing.T, home string, secure bool) string {
	t.Helper()
	port := strconv.Itoa(porttest.Free(t))
	ravi(t, home, "config", "set", "gateway.port", port)
	if secure {
		var made struct {
			Cert string `json:"tls_cert"`
			Key  string `json:"tls_key"`
		}
		if err := json.Unmarshal([]byte(ravi(t, home, "bus", "tls", "ravi", "--json")), &made); err != nil {
			t.Fatal(err)
		}
		ravi(t, home, "config", "set", "gateway.tls_cert", made.Cert)
		ravi(t, home, "config", "set", "gateway.tls_key", made.Key)
	}
	t.Cleanup(func() { ravi(t, home, "daemon", "stop") })
	ravi(t, home, "daemon", "start")
	return port
}

// kubernetesProxy is the configuration that is in the manifest.
func kubernetesProxy(t *testing.T) string {
	for _, o := range documents[object](t, "kubernetes/proxy.yaml") {
		if text := o.Data["default.conf"]; text != "" {
			return text
		}
	}
	t.Fatal("there is none")
	return ""
}

var listens = regexp.MustCompile(`(?m)^ *listen \[::\].*\n`)

// nginx starts a proxy with a configuration, and gives its port.
func nginx(t *testing.T, dir, conf string) string {
	t.Helper()
	port := strconv.Itoa(porttest.Free(t))
	conf = listens.ReplaceAllString(conf, "")
	conf = regexp.MustCompile(`listen (8?443) ssl`).ReplaceAllString(conf, "listen 127.0.0.1:"+port+" ssl")
	file := write(t, filepath.Join(dir, "nginx.conf"), fmt.Sprintf("daemon off;\nmaster_process off;\npid %[1]s/pid;\nerror_log %[1]s/error.log;\nevents {}\nhttp {\naccess_log off;\n"+
		"client_body_temp_path %[1]s/body;\nproxy_temp_path %[1]s/proxy;\nfastcgi_temp_path %[1]s/f;\nuwsgi_temp_path %[1]s/u;\nscgi_temp_path %[1]s/s;\n%[2]s}\n", dir, conf))
	bin := need(t, "nginx")
	if out, err := exec.Command(bin, "-t", "-e", filepath.Join(dir, "error.log"), "-c", file).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	cmd := exec.Command(bin, "-e", filepath.Join(dir, "error.log"), "-c", file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
			t.Error("nginx:", err)
		}
		if text, err := os.ReadFile(filepath.Join(dir, "error.log")); t.Failed() && err == nil {
			t.Logf("%s", text)
		}
	})
	until(t, "nginx", func() error {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
		}
		return err
	})
	return port
}

// ask sends one request as it is, and gives the answer.
func ask(t *testing.T, port, sni string, pool *x509.CertPool, request string) (*http.Response, error) {
	t.Helper()
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Minute}, Config: &tls.Config{ServerName: sni, RootCAs: pool, NextProtos: []string{"http/1.1"}}}
	c, err := d.DialContext(t.Context(), "tcp", "127.0.0.1:"+port)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(4 * time.Minute)); err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte(request)); err != nil {
		return nil, err
	}
	return http.ReadResponse(bufio.NewReader(c), nil)
}

// Of a gateway that is behind one of the proxies, /api/v1 can be asked, by the proxy's name and with a key, and nothing else.
func TestProxies(t *testing.T) {
	need(t, "nginx")
	for _, c := range []struct {
		name   string
		conf   string
		secure bool
	}{
		{"one machine", read(t, "nginx/ravi.conf"), false},
		{"compose", read(t, "compose/nginx.conf"), true},
		{"kubernetes", kubernetesProxy(t), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			home := filepath.Join(dir, "home")
			behind := gateway(t, home, c.secure)
			// The proxy's own certificate, as the world sees it.
			own := filepath.Join(dir, "world")
			ravi(t, own, "bus", "tls", outside)
			pems := filepath.Join(own, "bus", "tls")
			conf := c.conf
			for _, name := range []string{"cert.pem", "tls/tls.crt"} {
				conf = regexp.MustCompile(`ssl_certificate /\S*`+regexp.QuoteMeta(name)).ReplaceAllString(conf, "ssl_certificate "+pems+"/server.pem")
			}
			for _, name := range []string{"key.pem", "tls/tls.key"} {
				conf = regexp.MustCompile(`ssl_certificate_key /\S*`+regexp.QuoteMeta(name)).ReplaceAllString(conf, "ssl_certificate_key "+pems+"/server-key.pem")
			}
			if c.secure {
				conf = regexp.MustCompile(`(proxy_ssl_trusted_certificate) \S*;`).ReplaceAllString(conf, "$1 "+home+"/bus/tls/ca.pem;")
				conf = replace(t, conf, "https://ravi:7777", "https://127.0.0.1:"+behind)
			} else {
				conf = replace(t, conf, "http://127.0.0.1:7777", "http://127.0.0.1:"+behind)
			}
			port := nginx(t, dir, conf)
			ca, err := os.ReadFile(filepath.Join(pems, "ca.pem"))
			if err != nil {
				t.Fatal(err)
			}
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(ca)
			var key struct {
				Key string `json:"key"`
			}
			if err := json.Unmarshal([]byte(ravi(t, home, "context", "issue", "--label", "test", "--allow", "read:tasks", "--ttl", "1h", "--json")), &key); err != nil || key.Key == "" {
				t.Fatal(err, key)
			}
			post := func(path, host, more string) string {
				return "POST " + path + " HTTP/1.1\r\nHost: " + host + "\r\nContent-Type: application/json\r\nContent-Length: 2\r\n" + more + "\r\n{}"
			}
			auth := "Authorization: Bearer " + key.Key + "\r\n"
			for _, q := range []struct {
				name, request string
				status        int
			}{
				{"a call with a key", post("/api/v1/tasks/ls", outside, auth), 200},
				{"a call without", post("/api/v1/tasks/ls", outside, ""), 401},
				{"a call that the key does not allow", post("/api/v1/sessions/ls", outside, auth), 403},
				{"from a web page", post("/api/v1/tasks/ls", outside, auth+"Origin: https://evil.example\r\n"), 403},
				{"the root", post("/", outside, auth), 404},
				{"another path", post("/debug/pprof", outside, auth), 404},
				{"a longer name", post("/api/v1x/tasks/ls", outside, auth), 404},
				{"another version", post("/api/v2/tasks/ls", outside, auth), 404},
				{"out of it", post("/api/v1/../debug", outside, auth), 404},
				{"another name", post("/api/v1/tasks/ls", "127.0.0.1:7777", auth), 421},
				{"a server in the first line", post("http://127.0.0.1:7777/api/v1/tasks/ls", outside, auth), 421},
			} {
				res, err := ask(t, port, outside, pool, q.request)
				if err != nil {
					t.Errorf("%s: %v", q.name, err)
					continue
				}
				if res.StatusCode != q.status {
					t.Errorf("%s: %s, want %d", q.name, res.Status, q.status)
				}
				if strings.Contains(res.Header.Get("Server"), "/") {
					t.Errorf("%s: the answer says which version it is: %s", q.name, res.Header.Get("Server"))
				}
			}
			if _, err := ask(t, port, "other.example.com", pool, post("/api/v1/tasks/ls", outside, auth)); err == nil {
				t.Error("another name is served")
			}
			if t.Failed() {
				t.Log(conf)
			}
		})
	}
}
