package connected

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Bounds of what is sent and read.
const (
	maxBody     = 2 << 20
	maxAnswer   = 32 << 20
	maxRegistry = 4 << 20
	maxHeader   = 64 << 10
	maxError    = 256 << 10

	registryTimeout = 30 * time.Second // beside the wait
	firstPause      = 100 * time.Millisecond
	longestPause    = 2 * time.Second
)

// client asks the gateway.
type client struct {
	to       target
	http     *http.Client
	sleep    func(context.Context, time.Duration) error
	now      func() time.Time
	deadline time.Time // of all waiting together
}

func newClient(to target, sleep func(context.Context, time.Duration) error, now func() time.Time) *client {
	if sleep == nil {
		sleep = pause
	}
	if now == nil {
		now = time.Now
	}
	return &client{to: to, sleep: sleep, now: now, deadline: now().Add(to.wait), http: &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil, // the key is for the gateway alone
			DialContext:            to.dialer(),
			TLSHandshakeTimeout:    10 * time.Second,
			DisableCompression:     true, // a small answer must not become a large one
			MaxResponseHeaderBytes: maxHeader,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// request is one question.
type request struct {
	method, path string
	body         []byte
	accept       string
	repeat       bool   // doing it twice is the same as once
	what         string // it is called, in errors
	most         int64  // bytes of the answer
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// json says whether the answer's type is JSON.
func (a *answer) json() bool {
	kind, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// exit is the exit code of a result.
func (a *answer) exit() (int, *failure) {
	text := a.header.Get("Ravi-Exit")
	if text == "" {
		return 0, nil
	}
	code, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		return 0, nonsense("the gateway's exit code is not a number from 0 to 255")
	}
	return int(code), nil
}

var errTooLarge = errors.New("the answer is too large")

// do asks until there is an answer, or the time to wait for one is over. What may have been done is not asked for
// again, unless that makes no difference.
func (c *client) do(ctx context.Context, r request) (*answer, *failure) {
	back := firstPause
	for {
		a, sent, err := c.once(ctx, r)
		left := c.deadline.Sub(c.now())
		wait := min(back, left)
		var f *failure
		switch {
		case err == nil && a.status == http.StatusOK:
			return a, nil
		case err == nil && a.status == http.StatusTooManyRequests:
			// Before its time is over there is no use in asking.
			f, wait = c.refusal(a), a.retryAfter()
			if wait > left {
				if f.hint == "" {
					f.hint = fmt.Sprintf("try again in %s", wait)
				}
				return nil, f
			}
		case err == nil && a.status == http.StatusServiceUnavailable:
			// What is mostly waited for is a restart, which takes less than a Retry-After can say.
			f = c.refusal(a)
			f.exit = ExitUnavailable
		case err == nil:
			return nil, c.refusal(a)
		case ctx.Err() != nil:
			return nil, c.unavailable(sent && !r.repeat, r, ctx.Err())
		case errors.Is(err, errTooLarge):
			return nil, nonsense("the gateway's answer to %s is larger than %d bytes; ask for less, with --limit or for one object", r.what, r.most)
		case sent && !r.repeat:
			return nil, c.unavailable(true, r, err)
		case !sent && permanent(err):
			return nil, c.unavailable(false, r, err)
		default:
			f = c.unavailable(false, r, err)
		}
		if left <= 0 {
			if c.to.wait > 0 {
				f.message += fmt.Sprintf(" (waited %s)", c.to.wait)
			}
			return nil, f
		}
		if err := c.sleep(ctx, wait); err != nil {
			return nil, f
		}
		back = min(back*2, longestPause)
	}
}

// once asks once. sent says that the gateway may have got it.
func (c *client) once(ctx context.Context, r request) (a *answer, sent bool, err error) {
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, r.method, c.to.base+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, false, err
	}
	if c.to.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.to.key)
	}
	req.Header.Set("Accept", r.accept)
	req.Header.Set("User-Agent", "ravi-guest")
	if r.method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, connected.Load(), err
	}
	defer res.Body.Close()
	most := r.most
	if res.StatusCode != http.StatusOK {
		most = maxError
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, most+1))
	switch {
	case err != nil:
		return nil, true, err
	case int64(len(body)) > most && res.StatusCode == http.StatusOK:
		return nil, true, errTooLarge
	}
	return &answer{status: res.StatusCode, header: res.Header, body: body}, true, nil
}

// retryAfter is how long the gateway wants to be left alone.
func (a *answer) retryAfter() time.Duration {
	seconds, err := strconv.ParseUint(a.header.Get("Retry-After"), 10, 31)
	if err != nil {
		return time.Second
	}
	return max(time.Duration(seconds)*time.Second, firstPause)
}

// refusal is an answer that is an error.
func (c *client) refusal(a *answer) *failure {
	var doc struct {
		Error struct{ Code, Message, Hint string } `json:"error"`
	}
	f := &failure{exit: ExitFailed}
	if json.Unmarshal(a.body, &doc) == nil {
		f.code, f.message, f.hint = doc.Error.Code, doc.Error.Message, doc.Error.Hint
	}
	if f.code == "" || f.message == "" {
		// Whoever answered is not the gateway, or not well.
		code := codeInternal
		if a.status == http.StatusServiceUnavailable {
			code = codeUnavailable
		}
		f.code = code
		f.message = fmt.Sprintf("the gateway (%s) answered %d %s", c.to, a.status, http.StatusText(a.status))
		f.hint = ""
		if a.status >= 300 && a.status < 400 {
			f.message += ": redirects are not followed, so that the key goes nowhere else"
		}
	}
	if a.status == http.StatusBadRequest || f.code == codeUsage {
		f.exit = ExitUsage
	}
	if code, err := a.exit(); err == nil && code != 0 {
		f.exit = code
	}
	return f
}

// unavailable is no answer.
func (c *client) unavailable(uncertain bool, r request, err error) *failure {
	why := cause(err)
	if uncertain {
		return &failure{
			code: codeUncertain, exit: ExitFailed,
			message: fmt.Sprintf("the gateway (%s) was asked for %s, and no answer came: %s. It may have been done, or not", c.to, r.what, why),
			hint:    "look with a command that only reads before you ask for it again",
		}
	}
	code := codeUnavailable
	if c.to.own {
		code = codeRequired
	}
	return &failure{
		code: code, exit: ExitUnavailable,
		message: fmt.Sprintf("Ravi's gateway (%s) does not answer: %s", c.to, why),
		hint:    "nothing was done; try again in a while, or set " + envWait + " to wait longer",
	}
}

// cause is the part of an error that says what happened: the parts around it repeat the address. What a stranger
// answered can be in it, so it is bounded.
func cause(err error) string {
	const most = 300
	text := innermost(err)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

func innermost(err error) string {
	var op *net.OpError
	var sys *os.SyscallError
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return "its name is not known here"
	case errors.As(err, &sys):
		return sys.Err.Error()
	case errors.As(err, &op):
		return op.Err.Error()
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was cut"
	}
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return err.Error()
}

// permanent says that nothing will change by waiting.
func permanent(err error) bool {
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	return errors.As(err, &dns) && dns.IsNotFound || errors.As(err, &cert) || errors.Is(err, os.ErrPermission)
}
