package agent

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Of a conversation that is too long, old answers of tools are left out, and nothing else: it stays one, with what the
// user and the model said.
func TestShorten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := func(what string) string {
			return strings.Repeat("x", rapid.SampledFrom([]int{0, 1, 60, 200, 3000}).Draw(t, what))
		}
		l := &Loop{c: Config{Limits: Limits{Context: 10_000}}}
		l.messages = []Message{{Role: User, Text: "do it" + text("task")}}
		n := 0
		for range rapid.IntRange(0, 20).Draw(t, "rounds") {
			a, u := Message{Role: Assistant, Text: text("said"), Opaque: []byte(`"thought"`)}, Message{Role: User, Text: text("told")}
			for range rapid.IntRange(1, 3).Draw(t, "calls") {
				n++
				c := NewCall(fmt.Sprint("c", n), "look", fmt.Sprintf(`{"a":%q}`, text("args")))
				a.Calls = append(a.Calls, c)
				u.Results = append(u.Results, Result{CallID: c.ID, Tool: "look", Text: text("result"), Failed: n%2 == 0})
			}
			l.messages = append(l.messages, a, u)
		}
		before := append([]Message(nil), l.messages...)
		size := func(all []Message) (n int) {
			for _, m := range all {
				n += m.size()
			}
			return n
		}
		l.shorten()
		if err := valid(l.messages); err != nil {
			t.Fatal(err)
		}
		left := 0
		for i, m := range l.messages {
			was := before[i]
			for j, r := range m.Results {
				if r.Text != was.Results[j].Text {
					left++
					if r.Text != leftOut || i >= len(before)-4 || len(was.Results[j].Text) <= len(leftOut) {
						t.Fatalf("of message %d result %d became %q", i, j, r.Text)
					}
				}
				r.Text = was.Results[j].Text
				if r != was.Results[j] {
					t.Fatalf("of message %d result %d became %+v", i, j, r)
				}
			}
			m.Results, was.Results = nil, nil
			if fmt.Sprint(m) != fmt.Sprint(was) {
				t.Fatalf("message %d became %+v", i, m)
			}
		}
		switch {
		case size(before) <= 10_000:
			if left != 0 {
				t.Fatalf("%d were left out of what was short enough", left)
			}
		case size(l.messages) > 5_000: // then all that may be is left out
			for i, m := range l.messages[:max(len(l.messages)-4, 0)] {
				for _, r := range m.Results {
					if len(r.Text) > len(leftOut) {
						t.Fatalf("message %d has %d bytes left, of %d", i, len(r.Text), size(l.messages))
					}
				}
			}
		}
	})
}

// It is shortened before the model is asked, and the journal keeps what was left out.
func TestShortened(t *testing.T) {
	var steps []step
	for range 10 {
		steps = append(steps, asks(call("look", nil)))
	}
	m := script(t, append(steps, says("done"))...)
	at := t.TempDir() + "/journal"
	j := journalAt(t, at)
	turnOf(t, loopOf(t, Config{Model: m, Journal: j, Limits: Limits{Context: 4000}, Tools: []Tool{answers("look", strings.Repeat("x", 1000))}}), Finished)
	j.Close()
	first, last := m.request(10).Messages[2].Results[0].Text, m.told(10).Results[0].Text
	if first != leftOut || len(last) < 1000 {
		t.Errorf("the first answer is %.100q, and the last %.100q", first, last)
	}
	p, err := recall(journalAt(t, at).past)
	if err != nil || len(p.messages[2].Results[0].Text) < 1000 {
		t.Errorf("the journal has %+v, %v", p, err)
	}
}
