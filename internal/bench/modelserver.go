package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"ravi/internal/audit"
	"ravi/internal/broker"
	"ravi/internal/contextkey"
	"ravi/internal/guard"
	"ravi/internal/procid"
	"ravi/internal/store"
)

const (
	// jobBroker serves a broker on loopback as a run on the host has it, says where, and ends with its input.
	jobBroker = "broker"

	// The providers of the broker that is measured, and what a model of the first one does.
	benchProvider = "bench"
	hungProvider  = "hung"
	shortModel    = "bench-short"  // answers at once
	streamModel   = "bench-stream" // says something again and again

	modelEnd = "event: message_stop"
)

// How a stream is answered.
const (
	streamEvery  = 50 * time.Millisecond
	streamFor    = 5 * time.Second
	streamEvents = int(streamFor / streamEvery)
)

// modelUpstream is a provider of Anthropic's dialect that costs as little as can be, and one that hears and says nothing.
type modelUpstream struct {
	server    *http.Server
	url, hung string
	asked     chan struct{} // takes a value for each call that hangs, if there is room
	over      chan error
}

func newModelUpstream() (*modelUpstream, error) {
	u := &modelUpstream{asked: make(chan struct{}, 1), over: make(chan error, 2)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages", answerModel)
	mux.HandleFunc("POST /hung/v1/messages", u.hang)
	u.server = &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0)} // what a client does is in its own result
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	u.url = "http://" + l.Addr().String()
	u.hung = u.url + "/hung"
	go func() { u.over <- u.server.Serve(l) }()
	return u, nil
}

func (u *modelUpstream) close() error {
	err := u.server.Close()
	if served := <-u.over; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// hang reads what is asked, and says nothing until the asker goes away.
func (u *modelUpstream) hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // an asker that has gone wants no answer
	select {
	case u.asked <- struct{}{}:
	default:
	}
	<-r.Context().Done()
}

func answerModel(w http.ResponseWriter, r *http.Request) {
	var ask struct{ Model string }
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body) // an asker that has gone wants no answer
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	say := func(text string) error {
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
		return out.Flush()
	}
	if say(`event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"usage":{"input_tokens":25,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

`) != nil {
		return
	}
	if ask.Model == streamModel {
		tick := time.NewTicker(streamEvery)
		defer tick.Stop()
		for range streamEvents {
			select {
			case <-r.Context().Done():
				return
			case <-tick.C:
			}
			if say(streamEvent) != nil {
				return
			}
		}
	}
	_ = say(`event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}

` + modelEnd + `
data: {"type":"message_stop"}

`)
}

const (
	streamMark  = "event: content_block_delta\n"
	streamEvent = streamMark + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"some more of it "}}` + "\n\n"
)

// brokerProcess is a broker in a process of its own, as a run's is.
type brokerProcess struct {
	cmd   *exec.Cmd
	input io.Closer
	said  *tail
	url   string
}

// startBroker starts one, with so many processors, or 0 for all. Close it.
func (b *bench) startBroker(ctx context.Context, j job, processors int) (*brokerProcess, error) {
	spec, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	p := &brokerProcess{cmd: program(ctx, b.Program, "bench"), said: &tail{}}
	p.cmd.Env = append(withoutOurs(os.Environ()), EnvClient+"="+string(spec))
	if processors > 0 {
		p.cmd.Env = append(p.cmd.Env, fmt.Sprintf("GOMAXPROCS=%d", processors))
	}
	p.cmd.Stderr = p.said
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(io.LimitReader(out, 1<<10)).ReadBytes('\n')
	var at brokerAt
	if err == nil {
		err = json.Unmarshal(line, &at)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the broker beside: %w", err), p.close())
	}
	p.url = at.URL
	return p, nil
}

func (p *brokerProcess) pid() int { return p.cmd.Process.Pid }

func (p *brokerProcess) close() error {
	p.input.Close()
	return p.said.explain(p.cmd, p.cmd.Wait())
}

// withoutOurs is an environment without settings of Ravi's.
func withoutOurs(env []string) []string {
	var out []string
	for _, v := range env {
		if !strings.HasPrefix(v, "RAVI_") {
			out = append(out, v)
		}
	}
	return out
}

// broker does jobBroker.
func (j job) broker(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	o := broker.Options{Lease: broker.Lease{Hash: j.Body}, Begin: func(context.Context, broker.Call) error { return nil }}
	for name, base := range map[string]string{benchProvider: j.Base, hungProvider: j.Hung} {
		if base == "" {
			continue
		}
		u, err := url.Parse(base)
		if err != nil {
			return err
		}
		key := broker.Key{Name: "bench", Value: func(context.Context) (string, error) { return "sk-bench-opens-nothing", nil }}
		o.Providers = append(o.Providers, broker.Provider{Name: name, Dialect: broker.Anthropic, BaseURL: u, Keys: []broker.Key{key}})
	}
	if j.Home != "" {
		r, err := newModelRecord(ctx, j.Home, j.Body)
		if err != nil {
			return err
		}
		o.Begin, o.End = r.begin, r.end
		defer func() { err = errors.Join(err, r.close()) }()
	}
	b, err := broker.New(o)
	if err != nil {
		return err
	}
	l, err := guard.ListenTCP("127.0.0.1:0", nil)
	if err != nil {
		return err
	}
	s := guard.New(b, broker.ServerOptions())
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	err = brokerAt{"http://" + l.Addr().String()}.write(out)
	if err == nil {
		_, err = io.Copy(io.Discard, in)
	}
	b.End("the benchmark is over")
	ending, cancel := cleaning(context.Background())
	defer cancel()
	return errors.Join(err, s.Shutdown(ending), <-served)
}

// modelRecord writes calls down as a run does: before each a row of the audit, which is durable then, and after it what
// was used.
type modelRecord struct {
	store  *store.Store
	writer *audit.Writer
	lease  store.ModelLease
	failed chan error // the first of what could not be counted
}

func newModelRecord(ctx context.Context, home, hash string) (*modelRecord, error) {
	s, err := store.Open(ctx, home)
	if err != nil {
		return nil, err
	}
	r := &modelRecord{store: s, failed: make(chan error, 1)}
	self, e1 := procid.Self()
	run, e2 := s.InsertRun(ctx, store.Run{Status: store.RunRunning, Owner: self})
	if err := errors.Join(e1, e2); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	r.lease, err = s.InsertModelLease(ctx, store.ModelLease{
		Hash: hash, RunID: run.ID, Owner: self, Providers: []string{benchProvider}, ExpiresAt: store.Now().Add(contextkey.RunTTL),
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	r.writer = audit.NewWriter(audit.Log{Store: s})
	return r, nil
}

func (r *modelRecord) begin(ctx context.Context, c broker.Call) error {
	row, err := audit.Call{Caller: r.lease.ID, Action: audit.ModelCall, Object: c.Provider + "/" + c.Model, Decision: store.Allowed,
		RunID: r.lease.RunID, Input: map[string]any{"endpoint": c.Endpoint, "stream": c.Stream}}.Record(nil)
	if err != nil {
		return err
	}
	return r.writer.Append(ctx, row)
}

func (r *modelRecord) end(c broker.Call) {
	err := r.store.AddModelUsage(context.Background(), r.lease.ID, c.Provider, c.Model, store.ModelUse{Requests: 1, Input: c.Usage.Input, Output: c.Usage.Output})
	if err != nil {
		select {
		case r.failed <- err:
		default:
		}
	}
}

func (r *modelRecord) close() error {
	err := errors.Join(r.writer.Close(), r.store.Close())
	select {
	case failed := <-r.failed:
		err = errors.Join(err, failed)
	default:
	}
	return err
}
