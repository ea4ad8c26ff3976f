package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"ravi/internal/guard"
	"ravi/internal/run"
	"ravi/sandbox"
)

const (
	jobAsk   = "ask"   // ask a gateway again and again, with the key of the environment
	jobServe = "serve" // answer everything with one text, until the input ends

	// insideTries is below what one key may ask at once, so nothing waits.
	insideTries = 300
)

// constantServer is a process that gives the gateway's answer to one question, whoever asks for what: the same listener,
// and nothing behind it.
type constantServer struct {
	cmd    *exec.Cmd
	input  io.Closer
	said   *tail
	socket string
	text   string
}

// startConstant starts one that says what a daemon says now. Close it.
func (g *gateway) startConstant(ctx context.Context, d *daemonProcess) (*constantServer, error) {
	text, err := g.answer(ctx, d)
	if err != nil {
		return nil, err
	}
	s := &constantServer{said: &tail{}, socket: filepath.Join(g.dir, "constant.sock"), text: text}
	spec, err := json.Marshal(job{Do: jobServe, Base: s.socket, Body: text})
	if err != nil {
		return nil, err
	}
	s.cmd = g.ravi(ctx, "bench")
	s.cmd.Env = append(s.cmd.Env, EnvClient+"="+string(spec))
	s.cmd.Stderr = s.said
	if s.input, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make([]byte, len(word))
	if _, err := io.ReadFull(out, ready); err != nil || string(ready) != word {
		return nil, errors.Join(fmt.Errorf("the server beside: %w", errNoWord), s.close())
	}
	return s, nil
}

// answer is what a daemon answers to the question.
func (g *gateway) answer(ctx context.Context, d *daemonProcess) (string, error) {
	c, err := dialAsker(ctx, d.socket)
	if err != nil {
		return "", err
	}
	defer c.close()
	text, err := c.ask(g.question(g.keys[0].token))
	return string(text), err
}

func (s *constantServer) close() error {
	s.input.Close()
	return s.said.explain(s.cmd, s.cmd.Wait())
}

// saying answers everything with a text.
func saying(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a client that has gone away wants no answer
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text)
	}
}

// serve does jobServe.
func (j job) serve(in io.Reader, out io.Writer) error {
	l, err := guard.ListenUnix(j.Base)
	if err != nil {
		return err
	}
	s := guard.New(saying(j.Body), guard.Options{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	if _, err := io.WriteString(out, word); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	ending, cancel := cleaning(context.Background())
	defer cancel()
	return errors.Join(err, s.Shutdown(ending), <-served)
}

// ask does jobAsk.
func (j job) ask(ctx context.Context) (o outcome, err error) {
	base := j.Base
	if base == "" {
		base = os.Getenv(run.EnvURL)
	}
	client := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	var answer bytes.Buffer
	for i := range j.N + 1 {
		start := time.Now()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/api/v1/"+readAsk, strings.NewReader(j.Body))
		if err != nil {
			return o, err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+os.Getenv(run.EnvKey))
		resp, err := client.Do(req)
		if err != nil {
			return o, err
		}
		answer.Reset()
		_, err = io.Copy(&answer, resp.Body)
		resp.Body.Close()
		if err != nil {
			return o, err
		}
		if resp.StatusCode != http.StatusOK {
			return o, fmt.Errorf("%s answered %s: %.300s", base, resp.Status, answer.String())
		}
		if i > 0 { // the first one makes the connection
			o.Through = append(o.Through, float64(time.Since(start))/float64(time.Millisecond))
		}
	}
	return o, nil
}

// inside measures a run that asks for its own task, without any network; and beside it a sandbox that asks a service
// which answers with a constant.
func (g *gateway) inside(ctx context.Context, d *daemonProcess) error {
	text, err := g.answer(ctx, d)
	if err != nil {
		return err
	}
	repo := filepath.Join(g.dir, "inside")
	if err := emptyRepo(ctx, repo); err != nil {
		return err
	}
	ask := job{Do: jobAsk, N: insideTries, Body: `{"task":"` + g.subject.task + `"}`}
	return inTurns(ctx, 1, []string{byKey, constant}, func(by string) error {
		find := g.insideRun
		if by == constant {
			find = func(ctx context.Context, j job, _ string) (outcome, error) { return g.insideConstant(ctx, j, text) }
		}
		o, err := find(ctx, ask, repo)
		for _, v := range o.Through {
			g.add("gw_inside", by, v)
		}
		return err
	}, func(by string, err error) { g.fail("gw_inside", by, err) })
}

// insideRun is a run as a user makes it.
func (g *gateway) insideRun(ctx context.Context, j job, repo string) (o outcome, err error) {
	spec, err := json.Marshal(j)
	if err != nil {
		return o, err
	}
	cmd := g.ravi(ctx, "sandbox", "run", "--quiet", "--backend", ours, "--repo", repo, "--task-id", g.subject.task, "--context", "none", "--connect", "read",
		"--volume", g.Program+":"+guestProgram+":ro", "--env", EnvClient+"="+string(spec), "--", guestProgram, "bench")
	said, err := output(cmd)
	if err != nil {
		return o, err
	}
	// The program's own lines follow.
	if err := json.NewDecoder(strings.NewReader(said)).Decode(&o); err != nil {
		return o, fmt.Errorf("the client in the sandbox: %w in %.300q", err, said)
	}
	return o, nil
}

func (g *gateway) insideConstant(ctx context.Context, j job, text string) (o outcome, err error) {
	cfg := sandbox.Default()
	cfg.Backend = ours
	cfg.ExtraVolumes = []sandbox.Volume{{Host: g.Program, Guest: guestProgram, ReadOnly: true}}
	const name = "constant"
	sb, err := sandbox.Open(ctx, cfg, "", sandbox.WithHome(g.Home), sandbox.WithRecorder(g.recorder()), sandbox.WithService(name, sandbox.HTTPService(saying(text))))
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, sb.Close()) }()
	j.Base = sb.ServiceURL(name)
	return inSandbox(ctx, sb, j)
}
