package cli

import (
	"fmt"
	"strings"
	"testing"

	safe "ravi/internal/term"
)

// tallied reads a record.
func tallied(t *testing.T, record string, in networkInput) networkOutput {
	t.Helper()
	out := networkOutput{in: in}
	tally := newTally(&out)
	if err := tally.read(strings.NewReader(record)); err != nil {
		t.Fatal(err)
	}
	tally.finish(networkBlock{}.floor())
	return out
}

// A sandbox makes up names, and refusals, as it likes: what is kept of them is bounded, and all are counted.
func TestTallyIsBounded(t *testing.T) {
	var b strings.Builder
	const n = mostPeers + 7
	for i := range n {
		fmt.Fprintf(&b, `{"event":"network","kind":"dns","name":"n%d.example","allowed":false,"why":"no"}`+"\n", i)
	}
	out := tallied(t, b.String(), networkInput{})
	if len(out.Peers) != mostPeers || out.Totals.LeftOut != 7 || out.Totals.Refused != n || len(out.Suggested) != mostRefusals {
		t.Errorf("%d rows, %d suggestions, totals %+v", len(out.Peers), len(out.Suggested), out.Totals)
	}
}

func TestTallyKeepsNewestEvents(t *testing.T) {
	var b strings.Builder
	const n = 2*mostShown + 5
	for i := range n {
		fmt.Fprintf(&b, `{"event":"network","kind":"flow","name":"a.example","port":443,"status":%d,"allowed":true}`+"\n", i)
	}
	out := tallied(t, b.String(), networkInput{Events: true})
	if len(out.Events) != mostShown || !out.EventsCut || out.Events[0].Status != n-mostShown || out.Events[mostShown-1].Status != n-1 {
		t.Errorf("%d events, cut %v, from %d", len(out.Events), out.EventsCut, out.Events[0].Status)
	}
	if len(out.Peers) != 1 || out.Peers[0].Requests != n {
		t.Errorf("%+v", out.Peers)
	}
}

// A line that is too long is counted, and the next one is read.
func TestTallySkipsWhatItCannotRead(t *testing.T) {
	event := `{"event":"network","kind":"flow","name":"a.example","port":443,"allowed":true}`
	out := tallied(t, event+"\n"+strings.Repeat("x", eventLine+100)+"\n\n[]\n"+event+"\n"+event[:20], networkInput{})
	if out.Totals.Requests != 2 || out.Totals.Unread != 3 {
		t.Errorf("%+v", out.Totals)
	}
}

func TestCutFront(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"a.example:443", "a.example:443"},
		{"www.bank.example.evil.example", "…evil.example"},
		{"ああああああああああ", "…ああああああ"},
	} {
		got := cutFront(c.in, 13)
		if got != c.want || safe.Width(got) > 13 {
			t.Errorf("%q became %q (%d cells), want %q", c.in, got, safe.Width(got), c.want)
		}
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 999 << 10: "999 KiB", 1000 << 10: "0.977 MiB", 5 << 30: "5 GiB", 1 << 62: "4194304 TiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

// Who got which secret is told, and every alarm; no rule is suggested for what set one off.
func TestTallyOfSecrets(t *testing.T) {
	const record = `{"event":"network","kind":"flow","name":"a.example","port":443,"proto":"h2","allowed":true,"secrets":["B","A"]}
{"event":"network","kind":"flow","name":"a.example","port":443,"proto":"h2","allowed":true,"secrets":["A"]}
{"event":"network","kind":"dns","name":"ravi-secret-a-xyz.evil.example","allowed":false,"alarm":true,"why":"no"}
`
	out := tallied(t, record, networkInput{Events: true})
	if len(out.Peers) != 2 || strings.Join(out.Peers[0].Secrets, " ") != "B A" || out.Totals.Alarms != 1 || len(out.Suggested) != 0 {
		t.Errorf("%+v", out)
	}
	var b strings.Builder
	if err := printTotals(&b, out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a.example:443 got B, A", "ALARM: placeholders of secrets were sent 1 time"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the totals do not say %q:\n%s", want, b.String())
		}
	}
	if line := netLine(out.Events[0]); !strings.Contains(line, "with B, A") {
		t.Errorf("%s", line)
	}
	if line := netLine(out.Events[2]); !strings.Contains(line, "ALARM") {
		t.Errorf("%s", line)
	}
}
