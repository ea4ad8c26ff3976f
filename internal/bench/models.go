package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ravi/internal/broker"
)

const (
	// modelsAll is the name for all measures of the model broker and the agent programs.
	modelsAll = "models"

	// By which way a model is called.
	direct     = "direct"      // the upstream itself
	byBroker   = "broker"      // as a run has it
	unrecorded = "no record"   // a broker that writes nothing down
	bigBody    = "100 KB body" // as byBroker, with a question as long as an agent's

	callsARound = 50 // in turns
	mostCrowds  = 3  // each takes many seconds
)

// modelMeasures are what Only may name at once as "models". They need programs that may not be here, so they are asked
// for by name.
var modelMeasures = []string{"model_first", "model_streams", agentTurn}

// models measures the model broker and the agent programs.
func (b *bench) models(ctx context.Context) error {
	return b.phases(ctx,
		phase{"the first byte of a model call", "model_first", b.modelFirst},
		phase{fmt.Sprintf("%d streams of a model at once", streamCount), "model_streams", b.modelStreams},
		phase{"a turn of agent programs", agentTurn, b.agentTurns},
	)
}

// phase is a part of a group of measures: what it says of itself, and the measure that it is for.
type phase struct {
	step, measure string
	do            func(context.Context) error
}

// phases does those that are wanted.
func (b *bench) phases(ctx context.Context, all ...phase) error {
	for _, p := range all {
		if !b.want(p.measure) {
			continue
		}
		if err := b.step(p.step, func() error { return p.do(ctx) }); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// modelClient calls a model by several ways, over connections that are kept.
type modelClient struct {
	http  *http.Client
	token string
}

func newModelClient(token string) *modelClient {
	return &modelClient{token: token, http: &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: streamCount}}}
}

func (c *modelClient) close() { c.http.CloseIdleConnections() }

// question is a call's body: a model of the upstream's, and so many bytes at least of text.
func question(model string, size int) string {
	text := strings.Repeat("What is asked has some length. ", size/31+1)
	return `{"model":"` + model + `","max_tokens":1000,"stream":true,"messages":[{"role":"user","content":"` + text + `"}]}`
}

// open makes a call, and gives its stream.
func (c *modelClient) open(ctx context.Context, base, body string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/messages", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Api-Key", c.token)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "text/event-stream") {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 400)) // what there is of it
		resp.Body.Close()
		return nil, fmt.Errorf("the model call was answered %s: %s", resp.Status, text)
	}
	return resp.Body, nil
}

// first is the time to the first byte of an answer, which is read whole then.
func (c *modelClient) first(ctx context.Context, base, body string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	start := time.Now()
	stream, err := c.open(ctx, base, body)
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	var one [1]byte
	if _, err := io.ReadFull(stream, one[:]); err != nil {
		return 0, err
	}
	took := time.Since(start)
	rest, err := io.ReadAll(stream)
	if err == nil && !strings.Contains(string(rest), modelEnd) {
		err = errors.New("the answer has no end")
	}
	return took, err
}

// modelFirst measures what the broker adds to the time to an answer's first byte: each call by it follows or precedes the
// same call without it.
func (b *bench) modelFirst(ctx context.Context) (err error) {
	up, err := newModelUpstream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, up.close()) }()
	token, hash := broker.NewToken()
	c := newModelClient(token)
	defer c.close()
	type way struct {
		by, base, body string
	}
	var ways []way
	for _, by := range []string{byBroker, unrecorded, bigBody} {
		j := job{Do: jobBroker, Base: up.url, Body: hash}
		if by != unrecorded {
			j.Home = filepath.Join(b.dir, "broker-"+strings.ReplaceAll(by, " ", "-"))
			if err := os.Mkdir(j.Home, 0o700); err != nil {
				return err
			}
		}
		p, err := b.startBroker(ctx, j, 0)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.close()) }()
		size := 100
		if by == bigBody {
			size = 100_000
		}
		ways = append(ways, way{by, p.url + "/" + benchProvider, question(shortModel, size)})
	}
	turn := 0
	pair := func(w way) (without, with time.Duration, err error) {
		turn++
		bases := []string{up.url, w.base}
		var took [2]time.Duration
		for i := range bases {
			at := (turn + i) % len(bases)
			if took[at], err = c.first(ctx, bases[at], w.body); err != nil {
				return 0, 0, err
			}
		}
		return took[0], took[1], nil
	}
	for _, w := range ways { // the first ones make the connections
		if _, _, err := pair(w); err != nil {
			return err
		}
	}
	return inTurns(ctx, b.Runs, ways, func(w way) error {
		for range callsARound {
			without, with, err := pair(w)
			if err != nil {
				return err
			}
			b.addTime("model_first", w.by, with-without)
			if w.by == byBroker {
				b.addTime("model_call", direct, without)
				b.addTime("model_call", byBroker, with)
			}
		}
		return nil
	}, func(w way, err error) { b.fail("model_first", w.by, err) })
}

// brokerAt is what a child says that serves a broker.
type brokerAt struct {
	URL string `json:"url"`
}

func (a brokerAt) write(to io.Writer) error { return json.NewEncoder(to).Encode(a) }
