package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"ravi/internal/command"
	"ravi/internal/network"
	"ravi/internal/network/policy"
	runs "ravi/internal/run"
	"ravi/sandbox"
)

// Bounds of what is kept of one run: a sandbox makes events as fast as it likes, and names them as it likes.
const (
	eventLine    = 16 << 20 // bytes of one line; a path of a megabyte takes up to six times that when it is escaped
	mostPeers    = 5000     // rows
	mostRefusals = 5000     // different refusals of which rules are suggested
	mostShown    = 100_000  // of the newest events, with --events
	mostReasons  = 5        // of one row
)

func addSandboxNetwork(t *command.Table) {
	command.Add(t, command.Spec[networkInput, networkOutput]{
		Group: "sandbox", Name: "network", Aliases: []string{"net"}, Access: command.Read,
		Object: func(ctx context.Context, env *command.Env, in networkInput) (string, error) {
			return runBoxObject(ctx, env, in.ID)
		},
		Summary: "Show what a run reached on the network, and what was refused",
		Long: `Shows with whom a run talked, how much went each way, and by which rule; then
what was refused, and why. The id is a run's or its sandbox's, or its beginning.
A run that still goes on is shown as far as it came.

Bytes are as the sandbox sees them: OUT left it. Of a request they are its body
and its answer's, of a connection that held none all of it.`,
		Examples: []command.Example{
			{Line: "ravi sandbox network run01jf"},
			{What: "rules that would have allowed what was refused; read them first", Line: "ravi sandbox network run01jf --suggest"},
			{What: "every decision, a line each", Line: "ravi sandbox network run01jf --events"},
		},
		Handler: readNetwork, Print: printNetwork,
	})
}

type networkInput struct {
	ID      string `json:"id" arg:"SANDBOX|RUN" host:"none" usage:"the id, or its beginning"`
	Events  bool   `json:"events" flag:"events" host:"none" usage:"every decision, a line each"`
	Suggest bool   `json:"suggest" flag:"suggest" host:"none" usage:"only the rules that would have allowed what was refused"`
}

type networkOutput struct {
	RunID string `json:"run_id"`
	// Network is "none", "watched" or "open" (the host's own), or empty when the run did not come that far.
	Network   string    `json:"network"`
	Peers     []netPeer `json:"peers"`
	Totals    netTotals `json:"totals"`
	Suggested []string  `json:"suggested_rules"`
	// AllowNet is Suggested as the value of --allow-net.
	AllowNet string             `json:"allow_net"`
	Events   []sandbox.NetEvent `json:"events,omitempty"`
	// EventsCut says that there were more events than are given; these are the newest.
	EventsCut bool `json:"events_cut,omitempty"`

	in networkInput
}

// netPeer is what was exchanged with one name or address, at one port, in one way.
type netPeer struct {
	Name    string     `json:"name,omitempty"`
	Addr    netip.Addr `json:"addr,omitzero"`
	Port    uint16     `json:"port,omitempty"`
	Proto   string     `json:"proto"`
	Allowed bool       `json:"allowed"`
	Rule    string     `json:"rule,omitempty"`
	// Requests are requests, connections that held none, and questions for names.
	Requests int `json:"requests"`
	// Failed are those that were allowed and came to nothing.
	Failed   int   `json:"failed"`
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
	// Secrets are the names of those whose values were put into its requests.
	Secrets []string `json:"secrets,omitempty"`
	// Reasons are why it was refused or failed, the first few that differ.
	Reasons []string `json:"reasons,omitempty"`
}

type netTotals struct {
	Requests int   `json:"requests"` // allowed
	Failed   int   `json:"failed"`   // of those
	Refused  int   `json:"refused"`
	Names    int   `json:"names"` // questions for names that were answered
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
	// Alarms are placeholders of secrets that were sent to where they do not belong.
	Alarms int `json:"alarms"`
	// LeftOut are events that are counted here and have no row, since there are too many rows.
	LeftOut int `json:"left_out"`
	// Missing are events that were never recorded: there were too many at once.
	Missing int `json:"missing"`
	// Unread are lines of the record that cannot be read.
	Unread int `json:"unread"`
}

func readNetwork(ctx context.Context, env *command.Env, in networkInput) (networkOutput, error) {
	out := networkOutput{Peers: []netPeer{}, Suggested: []string{}, in: in}
	if in.Events && in.Suggest {
		return out, command.Usage("--events and --suggest are both given", "give one of them")
	}
	run, err := runOf(ctx, env, in.ID)
	if err != nil {
		return out, err
	}
	out.RunID = run.ID
	nothing := &command.Error{
		Code: command.CodeNotFound, Message: fmt.Sprintf("run %s has no record of its events", run.ID),
		Status: http.StatusNotFound,
	}
	if env.Caller.IsOperator() {
		nothing.Hint = "it would be " + filepath.Join(run.Dir, runs.EventsFile)
	}
	root, err := os.OpenRoot(run.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nothing
	}
	if err != nil {
		return out, errFolder(run.ID, err)
	}
	defer root.Close()
	events, err := root.OpenFile(runs.EventsFile, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nothing
	}
	if err != nil {
		return out, fmt.Errorf("cannot read the run's events: %w", err)
	}
	defer events.Close()
	tally := newTally(&out)
	if err := tally.read(events); err != nil {
		return out, fmt.Errorf("cannot read the run's events: %w", err)
	}
	file, err := env.Config()
	if err != nil {
		return out, err
	}
	own, err := networkOf(file)
	if err != nil {
		return out, err
	}
	tally.finish(own.floor())
	return out, nil
}

// peerKey is what a row is about.
type peerKey struct {
	name, proto, rule string
	addr              netip.Addr
	port              uint16
	allowed           bool
}

// tally adds up the events of a run.
type tally struct {
	out     *networkOutput
	rows    map[peerKey]*netPeer
	refused map[policy.Event]struct{}
}

func newTally(out *networkOutput) *tally {
	return &tally{out: out, rows: map[peerKey]*netPeer{}, refused: map[policy.Event]struct{}{}}
}

// read adds every line. What is no event of ours is counted and left: the last line of a run that was killed may be
// half of one.
func (t *tally) read(r io.Reader) error {
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		line, whole, err := readLine(in, eventLine)
		if len(line) > 0 {
			if !whole || !t.line(line) {
				t.out.Totals.Unread++
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readLine reads one line; of one that is longer than most bytes it gives the beginning, and skips the rest.
func readLine(in *bufio.Reader, most int) (line []byte, whole bool, err error) {
	whole = true
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) <= most {
			line = append(line, part...)
		} else {
			whole = false
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimSpace(line), whole, err
		}
	}
}

func (t *tally) line(line []byte) bool {
	var kind struct {
		Event   string `json:"event"`
		Network string `json:"network"`
	}
	if json.Unmarshal(line, &kind) != nil {
		return false
	}
	switch kind.Event {
	case "sandbox":
		t.out.Network = kind.Network
	case "network":
		var e sandbox.NetEvent
		if json.Unmarshal(line, &e) != nil {
			return false
		}
		t.add(e)
	}
	return true
}

func (t *tally) add(e sandbox.NetEvent) {
	if t.out.in.Events {
		if len(t.out.Events) == 2*mostShown {
			t.out.Events = append(t.out.Events[:0], t.out.Events[mostShown:]...)
			t.out.EventsCut = true
		}
		t.out.Events = append(t.out.Events, e)
	}
	sum := &t.out.Totals
	if e.Kind == network.KindLost {
		sum.Missing += e.Lost
		return
	}
	if e.Alarm {
		sum.Alarms++
	}
	failed := e.Allowed && e.Why != ""
	switch {
	case !e.Allowed:
		sum.Refused++
		t.remember(e)
	case e.Kind == network.KindName:
		// Nothing left the sandbox for it; who it was asked for has a row of its own if it was talked to.
		sum.Names++
		return
	default:
		sum.Requests++
		if failed {
			sum.Failed++
		}
	}
	sum.BytesIn += e.BytesIn
	sum.BytesOut += e.BytesOut
	key := peerKey{name: e.Name, addr: e.Addr, port: e.Port, proto: e.Proto, allowed: e.Allowed, rule: e.Rule}
	if e.Kind == network.KindName {
		key.proto = "dns"
	}
	p := t.rows[key]
	if p == nil {
		if len(t.rows) == mostPeers {
			sum.LeftOut++
			return
		}
		p = &netPeer{Name: key.name, Addr: key.addr, Port: key.port, Proto: key.proto, Allowed: key.allowed, Rule: key.rule}
		t.rows[key] = p
	}
	p.Requests++
	if failed {
		p.Failed++
	}
	p.BytesIn += e.BytesIn
	p.BytesOut += e.BytesOut
	for _, name := range e.Secrets {
		if !slices.Contains(p.Secrets, name) {
			p.Secrets = append(p.Secrets, name)
		}
	}
	if e.Why != "" && (failed || !e.Allowed) && len(p.Reasons) < mostReasons && !slices.Contains(p.Reasons, e.Why) {
		p.Reasons = append(p.Reasons, e.Why)
	}
}

// remember keeps what rules can be suggested for.
func (t *tally) remember(e sandbox.NetEvent) {
	if len(t.refused) < mostRefusals && runs.Suggestible(e) {
		t.refused[policy.Event{Name: e.Name, Addr: e.Addr, Port: e.Port}] = struct{}{}
	}
}

func (t *tally) finish(floor policy.Floor) {
	for _, p := range t.rows {
		t.out.Peers = append(t.out.Peers, *p)
	}
	slices.SortFunc(t.out.Peers, func(a, b netPeer) int {
		refused := func(p netPeer) int {
			if p.Allowed {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(refused(a), refused(b)), strings.Compare(a.Name, b.Name), a.Addr.Compare(b.Addr),
			cmp.Compare(a.Port, b.Port), strings.Compare(a.Proto, b.Proto), strings.Compare(a.Rule, b.Rule))
	})
	if n := len(t.out.Events); n > mostShown {
		t.out.Events, t.out.EventsCut = t.out.Events[n-mostShown:], true
	}
	refused := make([]policy.Event, 0, len(t.refused))
	for e := range t.refused {
		refused = append(refused, e)
	}
	t.out.Suggested = append(t.out.Suggested, runs.Suggest(floor, refused)...)
	t.out.AllowNet = strings.Join(t.out.Suggested, ",")
}
