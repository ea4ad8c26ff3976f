package bench

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/miekg/dns"

	"ravi/internal/network/tap"
)

// EnvClient makes `ravi bench` the client inside a sandbox that a benchmark
// measures the network with. It holds a job as JSON.
const EnvClient = "RAVI_BENCH_CLIENT"

// What a client can do.
const (
	jobConnect  = "connect"
	jobKept     = "kept"
	jobEvents   = "events"
	jobDownload = "download"
	jobCrowd    = "crowd"
)

// How a client speaks.
const (
	overHTTP   = "http"   // without TLS
	overHTTPS1 = "https1" // HTTP/1.1 in TLS
	overHTTPS2 = "https2" // HTTP/2 in TLS
)

// job is what a client is to do, N times.
type job struct {
	Do   string `json:"do"`
	N    int    `json:"n"`
	Over string `json:"over"`
	// Copies is after how many tries one follows on a connection that is copied
	// as it is; 0 for never.
	Copies int `json:"copies"`
	// Copied has all tries be like that.
	Copied bool      `json:"copied"`
	Bytes  int64     `json:"bytes"`
	Ports  [2]string `json:"ports"`
	CA     string    `json:"ca"`
	// Base is where a gateway or a provider is, and Body what it is asked, or what is answered, or the hash of a lease.
	Base string `json:"base,omitempty"`
	Body string `json:"body,omitempty"`
	// Hung is a provider that gives no answer, and Home where calls are written down; empty: nowhere. Of jobBroker.
	Hung string `json:"hung,omitempty"`
	Home string `json:"home,omitempty"`
	// Sessions is how many N messages are said in each, of jobSay.
	Sessions int `json:"sessions,omitempty"`
}

// outcome is what a client found: milliseconds, or MB a second of a download.
type outcome struct {
	Through []float64 `json:"through"` // the policy
	Copied  []float64 `json:"copied"`
}

// Client does the job of EnvClient, and writes its outcome as JSON.
func Client(ctx context.Context, text string, in io.Reader, out io.Writer) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return fmt.Errorf("%s: %w", EnvClient, err)
	}
	switch j.Do {
	case jobServe:
		return j.serve(in, out)
	case jobBroker:
		return j.broker(ctx, in, out)
	case jobMCP:
		return j.mcp(ctx, in, out)
	case jobSay:
		all, err := j.say(ctx)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(all)
	case jobAsk:
		o, err := j.ask(ctx)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(o)
	}
	// Where names are answered is asked directly: a file of the sandbox, or
	// something that remembers, would answer in its place.
	o, err := j.run(ctx, netip.AddrPortFrom(tap.Sandbox.Gateway, 53).String())
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(o)
}

// run does the job with names from a server.
func (j job) run(ctx context.Context, names string) (o outcome, err error) {
	through, err := j.client(names, false)
	if err != nil {
		return o, err
	}
	copied, err := j.client(names, true)
	if err != nil {
		return o, err
	}
	defer through.rest()
	defer copied.rest()
	if j.Do == jobCrowd {
		return o, through.crowd(ctx)
	}
	if j.Do == jobKept || j.Do == jobEvents {
		// The first one makes the connection, and does not count.
		for _, c := range []*client{through, copied} {
			if _, err := c.try(ctx); err != nil {
				return o, err
			}
		}
	}
	add := func(c *client, to *[]float64) error {
		v, err := c.try(ctx)
		if err == nil {
			*to = append(*to, v)
		}
		return err
	}
	for i := range j.N {
		if !j.Copied {
			if err := add(through, &o.Through); err != nil {
				return o, err
			}
		}
		if j.Copied || j.Copies > 0 && i%j.Copies == 0 {
			if err := add(copied, &o.Copied); err != nil {
				return o, fmt.Errorf("copied: %w", err)
			}
		}
	}
	return o, nil
}

// client is one way to the servers.
type client struct {
	job
	http *http.Client
	base string
	buf  []byte
}

func (j job) client(names string, copied bool) (*client, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	// What is copied shows the certificate of the server itself.
	if !roots.AppendCertsFromPEM([]byte(j.CA)) {
		return nil, errors.New("the job has no certificate")
	}
	var protocols http.Protocols
	protocols.SetHTTP1(j.Over != overHTTPS2)
	protocols.SetHTTP2(j.Over == overHTTPS2)
	t := &http.Transport{
		TLSClientConfig:    &tls.Config{RootCAs: roots},
		Protocols:          &protocols,
		DisableKeepAlives:  j.Do == jobConnect,
		DisableCompression: true,
		ReadBufferSize:     64 << 10,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			conn, err := connect(ctx, names, address)
			if err == nil && copied {
				conn = &marked{Conn: conn}
			}
			return conn, err
		},
	}
	c := &client{job: j, http: &http.Client{Transport: t}, buf: make([]byte, 256<<10)}
	c.base = "https://" + net.JoinHostPort(netName, j.Ports[1])
	if j.Over == overHTTP {
		c.base = "http://" + net.JoinHostPort(netName, j.Ports[0])
	}
	return c, nil
}

// rest closes connections that are kept.
func (c *client) rest() { c.http.CloseIdleConnections() }

// connect asks for a name's address, and connects to it.
func connect(ctx context.Context, names, address string) (net.Conn, error) {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	var q dns.Msg
	q.SetQuestion(dns.Fqdn(name), dns.TypeA)
	a, _, err := (&dns.Client{Timeout: 10 * time.Second}).ExchangeContext(ctx, &q, names)
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", name, err)
	}
	for _, rr := range a.Answer {
		if at, ok := rr.(*dns.A); ok {
			return (&net.Dialer{}).DialContext(ctx, "tcp4", net.JoinHostPort(at.A.String(), port))
		}
	}
	return nil, fmt.Errorf("asking for %s: %s, and no address", name, dns.RcodeToString[a.Rcode])
}

// try does the job once.
func (c *client) try(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	start := time.Now()
	ms := func() float64 { return float64(time.Since(start)) / float64(time.Millisecond) }
	switch c.Do {
	case jobConnect, jobKept:
		n, err := c.get(ctx, "/hello")
		if err == nil && n != int64(len(word)) {
			err = errNoWord
		}
		return ms(), err
	case jobEvents:
		resp, err := c.open(ctx, "/events")
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		in := bufio.NewReader(resp.Body)
		if err := firstEvent(in); err != nil {
			return 0, err
		}
		took := ms()
		_, err = io.Copy(io.Discard, in)
		return took, err
	case jobDownload:
		// On a connection that is there: how it is made is another measure.
		if _, err := c.get(ctx, "/hello"); err != nil {
			return 0, err
		}
		start = time.Now()
		n, err := c.get(ctx, fmt.Sprintf("/bytes?n=%d", c.Bytes))
		if err == nil && n != c.Bytes {
			err = fmt.Errorf("%d bytes came, not %d", n, c.Bytes)
		}
		return float64(c.Bytes) / 1e6 / time.Since(start).Seconds(), err
	}
	return 0, fmt.Errorf("%s: there is no job %q", EnvClient, c.Do)
}

// crowd gets what everybody gets at once, and says so.
func (c *client) crowd(ctx context.Context) error {
	n, err := c.get(ctx, "/crowd")
	if err == nil && n != c.Bytes {
		err = fmt.Errorf("%d bytes came, not %d", n, c.Bytes)
	}
	if err == nil {
		_, err = c.get(ctx, "/crowd/done")
	}
	return err
}

func (c *client) open(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if major := 1 + strings.Count(c.Over, "2"); resp.StatusCode != http.StatusOK || resp.ProtoMajor != major {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 400))
		resp.Body.Close()
		return nil, fmt.Errorf("%s: %s %s: %s", path, resp.Proto, resp.Status, text)
	}
	return resp, nil
}

// get reads a whole answer, and says how long it was.
func (c *client) get(ctx context.Context, path string) (n int64, err error) {
	resp, err := c.open(ctx, path)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	for {
		got, err := resp.Body.Read(c.buf)
		n += int64(got)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// ClientJob is the job that this process was started for, or empty.
func ClientJob() string { return os.Getenv(EnvClient) }
