package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"ravi/internal/guard"
)

// gatewaySocket is the daemon's socket in its home.
const gatewaySocket = "cli-gateway.sock"

// daemonWait bounds how long a daemon may take to accept calls, and to end.
const daemonWait = 30 * time.Second

// daemonProcess is a daemon that is measured: the real program, in a home of its own.
type daemonProcess struct {
	cmd    *exec.Cmd
	said   *tail
	socket string
	took   time.Duration // from its start until it answered
	ended  chan struct{} // closed when it has
}

// startDaemon starts a daemon, which answers when this returns. End it.
func (g *gateway) startDaemon(ctx context.Context) (*daemonProcess, error) {
	d := &daemonProcess{said: &tail{}, socket: filepath.Join(g.home, gatewaySocket), ended: make(chan struct{})}
	d.cmd = g.ravi(ctx, "daemon", "run")
	d.cmd.Stderr = d.said
	start := time.Now()
	if err := g.start(d.cmd); err != nil {
		return nil, err
	}
	go func() {
		_ = d.cmd.Wait() // how it ended is in what it said
		close(d.ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, daemonWait)
	defer cancel()
	tick := time.NewTicker(500 * time.Microsecond)
	defer tick.Stop()
	for {
		err := d.answers(ctx)
		// Who asks a daemon on another host is refused, which is an answer.
		if _, isRefusal := errors.AsType[*refused](err); err == nil || isRefusal && g.at != nil {
			d.took = time.Since(start)
			return d, nil
		}
		select {
		case <-d.ended:
			return nil, fmt.Errorf("the daemon ended before it answered: %s", d.said.b)
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("the daemon does not answer: %w", err), d.kill())
		case <-tick.C:
		}
	}
}

// ravi is the program, in the measured home. No key and no setting of the user's reaches it.
func (g *gateway) ravi(ctx context.Context, args ...string) *exec.Cmd {
	cmd := program(ctx, g.Program, args...)
	cmd.Env = append(withoutOurs(os.Environ()), "RAVI_HOME="+g.home)
	return cmd
}

func (d *daemonProcess) answers(ctx context.Context) error {
	c, err := dialAsker(ctx, d.socket)
	if err != nil {
		return err
	}
	defer c.close()
	_, err = c.ask(request("GET", "_meta/version", "", nil))
	return err
}

func (d *daemonProcess) pid() int { return d.cmd.Process.Pid }

// stop ends the daemon as its user would.
func (d *daemonProcess) stop() error {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-d.ended:
		return nil
	case <-time.After(daemonWait):
		return errors.Join(errors.New("the daemon did not end when it was asked to"), d.kill())
	}
}

// kill ends it at once.
func (d *daemonProcess) kill() error {
	if err := d.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-d.ended
	return nil
}

// asker is a client with one connection, which costs as little as can be, since it works on the processors that are
// measured.
type asker struct {
	conn net.Conn
	in   *bufio.Reader
	body bytes.Buffer
}

func dialAsker(ctx context.Context, socket string) (*asker, error) {
	c, err := guard.DialUnix(ctx, socket)
	if err != nil {
		return nil, err
	}
	return &asker{conn: c, in: bufio.NewReader(c)}, nil
}

func (a *asker) close() { a.conn.Close() }

// refused is an answer that is no result.
type refused struct {
	status int
	text   string
}

func (e *refused) Error() string { return fmt.Sprintf("the gateway answered %d: %s", e.status, e.text) }

// ask sends a request and gives the answer's body, which holds until the next one. Without an error it was answered whole.
func (a *asker) ask(request []byte) ([]byte, error) {
	if err := a.conn.SetDeadline(time.Now().Add(daemonWait)); err != nil {
		return nil, err
	}
	if _, err := a.conn.Write(request); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(a.in, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a.body.Reset()
	if _, err := io.Copy(&a.body, resp.Body); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, &refused{resp.StatusCode, strings.TrimSpace(a.body.String())}
	}
	return a.body.Bytes(), nil
}

// request is a call as it goes over the wire, by the operator or with a key.
func request(method, path, key string, body []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s /api/v1/%s HTTP/1.1\r\nHost: localhost\r\n", method, path)
	if key != "" {
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", key)
	}
	if body != nil {
		fmt.Fprintf(&b, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes()
}
