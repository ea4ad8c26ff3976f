package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// grpcServer is a server of gRPC's own making, for the four kinds of calls; grpcClient makes them.
const grpcServer = `import grpc, sys
from concurrent import futures
def unary(request, context): return b"hello " + request
def fails(request, context): context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not today")
def many(request, context):
    for i in range(int(request)): yield b"%d" % i
def up(requests, context): return b"%d" % sum(1 for r in requests)
def both(requests, context):
    for r in requests: yield r[::-1]
handlers = grpc.method_handlers_generic_handler("Test", {
    "Unary": grpc.unary_unary_rpc_method_handler(unary), "Fails": grpc.unary_unary_rpc_method_handler(fails),
    "Many": grpc.unary_stream_rpc_method_handler(many), "Up": grpc.stream_unary_rpc_method_handler(up), "Both": grpc.stream_stream_rpc_method_handler(both)})
server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((handlers,))
creds = grpc.ssl_server_credentials([(open(sys.argv[2], "rb").read(), open(sys.argv[1], "rb").read())])
print(server.add_secure_port("127.0.0.1:0", creds), flush=True)
server.start()
server.wait_for_termination()
`

const grpcClient = `import grpc, sys
what, target = sys.argv[1], sys.argv[2]
channel = grpc.secure_channel(target, grpc.ssl_channel_credentials())
if what == "unary": print(channel.unary_unary("/Test/Unary")(b"you", timeout=60).decode())
if what == "fails":
    try: channel.unary_unary("/Test/Fails")(b"", timeout=60)
    except grpc.RpcError as e: print(e.code().name, e.details())
if what == "many":
    n, last = 0, b""
    for last in channel.unary_stream("/Test/Many")(b"10000", timeout=600): n += 1
    print(n, last.decode())
if what == "up": print(channel.stream_unary("/Test/Up")((b"%d" % i for i in range(10000)), timeout=600).decode())
if what == "both": print(b" ".join(channel.stream_stream("/Test/Both")(iter([b"abc", b"def"]), timeout=60)).decode())
`

// halfClose sends 8 MB, ends its side, and only then reads.
const halfClose = `import socket, sys
s = socket.create_connection(("example.test", int(sys.argv[1])), 60)
s.sendall(b"x" * (8 << 20)); s.shutdown(socket.SHUT_WR)
n = 0
while True:
    d = s.recv(65536)
    if not d: break
    n += len(d)
print(n)
`

// Clients of many kinds, through interception and without it, as in reports about other proxies.
func TestNetworkClients(t *testing.T) {
	s, w, r := newSite(t), newWorld(t), plain(t)
	if err := exec.Command("/usr/bin/python3", "-c", "import grpc").Run(); err != nil {
		t.Skip("SKIP-FEATURE: there is no python3-grpcio")
	}
	server := exec.Command("/usr/bin/python3", "-c", grpcServer, s.dir+"/site.pem", s.dir+"/site.key")
	out, err := server.StdoutPipe()
	must(t, err)
	server.Stderr = os.Stderr
	must(t, server.Start())
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	grpcPort, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	grpcPort = strings.TrimSpace(grpcPort)

	raw, lines := s.rawServer(t)
	half := halfServer(t)
	r.write("server.py", grpcServer)
	r.write("client.py", grpcClient)
	r.write("half.py", halfClose)
	r.write("fetch.mjs", `import https from "node:https";
const url = process.argv[2];
console.log(await (await fetch(url)).text());
https.get(url, r => r.on("data", d => process.stdout.write(d)));
`)
	r.write("go.txt", strings.Repeat("upload ", 1<<20))
	r.commit("clients")
	targets := []string{"/@scope%2fname", "/%21azure", "/a//b", "/a/./b", "/a/../b", "/x?a=1;b", "/nul%00", "/q?" + strings.Repeat("k=v&", 4<<10)}
	script := try + fmt.Sprintf(`S=%s G=%s R=%s H=%s
for x in unary fails many up both; do try grpc-$x "/usr/bin/python3 client.py $x example.test:$G"; done
try recovery 'cat /proc/sys/net/ipv4/tcp_recovery'
try refused-upload 'curl -sS -m 60 -o /tmp/said -w "%%{http_code} %%{size_upload}" --expect100-timeout 60 -H "Expect: 100-continue" -T go.txt https://example.test:$R/refused --http1.1'
try upload 'curl -sS -m 60 -o /tmp/said -w "%%{http_code} %%{size_upload}" --expect100-timeout 60 -H "Expect: 100-continue" -T go.txt https://example.test:$R/taken --http1.1'
try half-close '/usr/bin/python3 half.py $H'
try node 'node fetch.mjs https://example.test:$S/node'
try wget 'wget -qO- https://example.test:$S/wget'
try pip-conf '/usr/bin/python3 -c "import ssl, os; print(len(ssl.create_default_context().get_ca_certs()) > 1)"'
try openssl 'echo | openssl s_client -connect example.test:$S -servername example.test -verify_return_error 2>&1 | grep -c "Verify return code: 0"'
try targets 'while read -r target; do curl -sS -m 60 --path-as-is --http1.1 -o /dev/null "https://example.test:$R$target" || exit; done <<"END"
%s
END'
`, s.secure, grpcPort, raw, half, strings.Join(targets, "\n"))
	rules := []string{"example.test:" + s.secure, "127.0.0.1:" + s.secure}
	for _, port := range []string{grpcPort, raw, half} {
		rules = append(rules, "example.test:"+port, "127.0.0.1:"+port)
	}
	result := s.run(w, r, "--allow-net", strings.Join(rules, ","), "--", "bash", "-c", script).want(0)
	got := attempts(t, result.stdout)
	for name, want := range map[string]string{
		"grpc-unary": "hello you", "grpc-fails": "FAILED_PRECONDITION not today", "grpc-many": "10000 9999", "grpc-up": "10000", "grpc-both": "cba fed",
		"refused-upload": "417 0", "upload": fmt.Sprintf("200 %d", 7<<20), "half-close": fmt.Sprint(1 << 20),
		"node": "nginx says hello  nginx says hello", "wget": "nginx says hello", "pip-conf": "True", "openssl": "1", "targets": "", "recovery": "0",
	} {
		if a, ok := got[name]; !ok || a.status != "0" || strings.TrimSpace(a.out) != want {
			t.Errorf("%s: status %q, %q; want %q", name, a.status, short(a.out), want)
		}
	}
	// What the server saw is the line as it was sent.
	var seen []string
	for _, line := range lines() {
		if target := strings.Fields(line)[1]; target != "/refused" && target != "/taken" {
			seen = append(seen, target)
		}
	}
	if strings.Join(seen, "\n") != strings.Join(targets, "\n") {
		t.Errorf("the server saw\n%s\nwant\n%s", strings.Join(seen, "\n"), strings.Join(targets, "\n"))
	}
	if strings.Contains(result.stderr, "SSL") || strings.Contains(result.stderr, "certificate") {
		t.Errorf("stderr: %s", result.stderr)
	}
}

// rawServer is HTTP/1.1 inside TLS that keeps each request line as it came. It refuses uploads to /refused by their heads.
func (s *site) rawServer(t *testing.T) (port string, lines func() []string) {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(s.dir+"/site.pem", s.dir+"/site.key")
	must(t, err)
	l, err := tls.Listen("tcp4", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	var mu sync.Mutex
	var seen []string
	serve := func(c net.Conn) {
		defer c.Close()
		in := bufio.NewReader(c)
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		mu.Lock()
		seen = append(seen, strings.TrimSpace(line))
		mu.Unlock()
		req, err := http.ReadRequest(bufio.NewReader(io.MultiReader(strings.NewReader("PUT / HTTP/1.1\r\n"), in)))
		if err != nil {
			return
		}
		if strings.Contains(line, "/refused") {
			io.WriteString(c, "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			return
		}
		if req.Header.Get("Expect") != "" {
			io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		}
		io.Copy(io.Discard, req.Body)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	_, port, err = net.SplitHostPort(l.Addr().String())
	must(t, err)
	return port, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), seen...)
	}
}

// halfServer reads to the end, then answers with 1 MB.
func halfServer(t *testing.T) (port string) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if n, err := io.Copy(io.Discard, c); err == nil && n == 8<<20 {
					c.Write(bytes.Repeat([]byte("y"), 1<<20))
				}
			}()
		}
	}()
	_, port, err = net.SplitHostPort(l.Addr().String())
	must(t, err)
	return port
}
