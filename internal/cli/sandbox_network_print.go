package cli

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"ravi/internal/command"
	"ravi/internal/network"
	runs "ravi/internal/run"
	safe "ravi/internal/term"
	"ravi/sandbox"
)

// printNetwork prints what the network did. The sandbox chose the names in it, so agents get it fenced.
func printNetwork(env *command.Env, w io.Writer, out networkOutput) error {
	if !env.ForAgent {
		return printNetworkPlain(env, w, out)
	}
	b := &sized{Builder: &strings.Builder{}, width: widthOf(w)}
	if err := printNetworkPlain(env, b, out); err != nil {
		return err
	}
	return safe.Fence(w, "network of "+out.RunID, b.String())
}

func printNetworkPlain(env *command.Env, w io.Writer, out networkOutput) error {
	switch {
	case out.in.Suggest:
		return printSuggested(env, w, out)
	case out.in.Events:
		if out.EventsCut && !env.Quiet {
			fmt.Fprintf(env.Stderr, "the newest %d events; all of them are in the run's %s\n", len(out.Events), runs.EventsFile)
		}
		lines := bufio.NewWriter(w)
		for _, e := range out.Events {
			fmt.Fprintf(lines, "%s %s\n", e.Time.UTC().Format("2006-01-02T15:04:05.000Z"), netLine(e))
		}
		return lines.Flush()
	}
	if len(out.Peers) == 0 {
		_, err := fmt.Fprintln(w, nothingHappened(out))
		return err
	}
	if err := printPeers(w, out.Peers); err != nil || env.Quiet {
		return err
	}
	return printTotals(w, out)
}

// nothingHappened says why there is nothing to show, as far as that is known.
func nothingHappened(out networkOutput) string {
	switch {
	case out.Network == runs.NetworkNone:
		return fmt.Sprintf("run %s had no network; --allow-net of ravi sandbox run gives one", out.RunID)
	case out.Network == runs.NetworkOpen:
		return fmt.Sprintf("run %s had this machine's own network, where nothing is watched or refused", out.RunID)
	case out.Totals.Names > 0:
		return fmt.Sprintf("run %s asked for %s and talked to nobody", out.RunID, count(out.Totals.Names, "name", "names"))
	}
	return fmt.Sprintf("run %s asked nothing of a network", out.RunID)
}

func printSuggested(env *command.Env, w io.Writer, out networkOutput) error {
	for _, r := range out.Suggested {
		fmt.Fprintln(w, safe.Safe(r))
	}
	if len(out.Suggested) == 0 && !env.Quiet {
		said := "nothing was refused"
		if n := out.Totals.Refused; n > 0 {
			said = fmt.Sprintf("%s refused that no rule of a run would allow; see ravi sandbox network %s", wasWere(n), out.RunID)
		}
		fmt.Fprintln(env.Stderr, said)
	}
	return nil
}

func wasWere(n int) string {
	if n == 1 {
		return "1 thing was"
	}
	return fmt.Sprintf("%d things were", n)
}

// namedWidth is how much of a row a name gets, at most.
const namedWidth = 34

func printPeers(w io.Writer, peers []netPeer) error {
	var allowed, refused [][]string
	for _, p := range peers {
		who := cutFront(safe.Safe(p.target()), namedWidth)
		if p.Allowed {
			times := strconv.Itoa(p.Requests)
			rule := p.Rule
			if p.Failed > 0 {
				rule = fmt.Sprintf("(%d failed) %s", p.Failed, rule)
			}
			allowed = append(allowed, []string{who, p.Proto, times, bytesText(p.BytesOut), bytesText(p.BytesIn), rule})
			continue
		}
		var why []string
		for _, r := range p.Reasons {
			short, _, _ := strings.Cut(r, "; allow ") // --suggest says it for all
			why = append(why, short)
		}
		refused = append(refused, []string{who, p.Proto, strconv.Itoa(p.Requests), strings.Join(why, "; ")})
	}
	if len(allowed) > 0 {
		if err := safe.Table(w, widthOf(w), []safe.Column{{Title: "REACHED"}, {Title: "PROTOCOL", Flex: true}, {Title: "TIMES", Right: true},
			{Title: "OUT", Right: true}, {Title: "IN", Right: true}, {Title: "RULE", Flex: true}}, allowed); err != nil {
			return err
		}
	}
	if len(allowed) > 0 && len(refused) > 0 {
		fmt.Fprintln(w)
	}
	if len(refused) > 0 {
		return safe.Table(w, widthOf(w), []safe.Column{{Title: "REFUSED"}, {Title: "PROTOCOL", Flex: true}, {Title: "TIMES", Right: true},
			{Title: "WHY", Flex: true}}, refused)
	}
	return nil
}

func printTotals(w io.Writer, out networkOutput) error {
	t := out.Totals
	fmt.Fprintf(w, "\n%d allowed", t.Requests)
	if t.Failed > 0 {
		fmt.Fprintf(w, " (%d failed)", t.Failed)
	}
	fmt.Fprintf(w, ", %d refused; %s out, %s in\n", t.Refused, bytesText(t.BytesOut), bytesText(t.BytesIn))
	for _, p := range out.Peers {
		if len(p.Secrets) > 0 {
			fmt.Fprintf(w, "%s got %s\n", safe.Safe(p.target()), safe.Safe(strings.Join(p.Secrets, ", ")))
		}
	}
	if t.Alarms > 0 {
		fmt.Fprintf(w, "ALARM: placeholders of secrets were sent %s to where they do not belong\n", count(t.Alarms, "time", "times"))
	}
	if t.Missing > 0 {
		fmt.Fprintf(w, "%d more were not recorded: there were too many at once\n", t.Missing)
	}
	if t.LeftOut > 0 {
		fmt.Fprintf(w, "%d of them are not in the table, which has its bounds; see --events\n", t.LeftOut)
	}
	if t.Unread > 0 {
		fmt.Fprintf(w, "%s of the record cannot be read\n", count(t.Unread, "line", "lines"))
	}
	if len(out.Suggested) > 0 {
		fmt.Fprintf(w, "what would allow the refused: ravi sandbox network %s --suggest\n", out.RunID)
	}
	return nil
}

func (p netPeer) target() string { return netTarget(p.Name, p.Addr, p.Port) }

// netTarget is name:port, or the name alone without a port.
func netTarget(name string, addr netip.Addr, port uint16) string {
	if name == "" && addr.IsValid() {
		name = addr.String()
	}
	if port == 0 {
		return name
	}
	return net.JoinHostPort(name, strconv.Itoa(int(port)))
}

// cutFront cuts a safe string at its beginning: whose a name is stands at its end, and who makes up names could hide
// that behind a known beginning.
func cutFront(s string, width int) string {
	if safe.Width(s) <= width {
		return s
	}
	runes := []rune(s)
	for len(runes) > 0 && safe.Width(string(runes)) > width-1 {
		runes = runes[1:]
	}
	return "…" + string(runes)
}

// bytesText is a number of bytes in three or four digits.
func bytesText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value := float64(n)
	for _, name := range []string{"KiB", "MiB", "GiB"} {
		if value /= unit; value < 999.5 {
			return fmt.Sprintf("%.3g %s", value, name)
		}
	}
	return fmt.Sprintf("%.0f TiB", value/unit)
}

// showNetwork prints a decision of the network, a line each.
func showNetwork(w io.Writer, e sandbox.NetEvent) { fmt.Fprintln(w, "net", netLine(e)) }

// netLine is one decision on one line, safe for a terminal.
func netLine(e sandbox.NetEvent) string {
	if e.Kind == network.KindLost {
		return fmt.Sprintf("%d events are missing (%s)", e.Lost, safe.Safe(e.Why))
	}
	what := "allowed"
	if !e.Allowed {
		what = "refused"
	}
	line := []string{what, string(e.Kind), netTarget(e.Name, e.Addr, e.Port)}
	for _, s := range []string{e.Proto, e.Method, e.Path} {
		if s != "" {
			line = append(line, s)
		}
	}
	if e.Status != 0 {
		line = append(line, strconv.Itoa(e.Status))
	}
	if len(e.Secrets) > 0 {
		line = append(line, "with "+strings.Join(e.Secrets, ", "))
	}
	if e.Alarm {
		line = append(line, "ALARM")
	}
	if e.Why != "" && (!e.Allowed || e.Kind != network.KindName) {
		line = append(line, "("+e.Why+")")
	}
	if e.Hint != "" {
		line = append(line, "hint: "+e.Hint)
	}
	return safe.Safe(strings.Join(line, " "))
}
