package run

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ravi/internal/broker"
	"ravi/internal/redact"
	"ravi/internal/store"
)

// recordedLines reads a record, whose hashes must be right.
func recordedLines(t *testing.T, name string) (lines []recordedLine, last map[string]any) {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	for line := range bytes.Lines(b) {
		var l recordedLine
		must(t, json.Unmarshal(line, &l))
		last = nil
		must(t, json.Unmarshal(line, &last))
		for _, text := range []*string{l.Request, l.Answer} {
			if text == nil {
				continue
			}
			if sum := sha256.Sum256([]byte(*text)); hex.EncodeToString(sum[:]) != l.SHA256 {
				t.Errorf("the hash of %.100q is %s", *text, l.SHA256)
			}
		}
		lines = append(lines, l)
	}
	return lines, last
}

// secretly asks what is in no file of the run but by what was asked.
const secretly = `say m "ask $(echo 8411 | rev) $ANTHROPIC_API_KEY"; say broken; say other`

// What models are asked and answer is kept where it is asked for, without the keys and the lease, and the audit has its
// hash. What was refused is not kept.
func TestModelCallsAreRecorded(t *testing.T) {
	u := newUpstream(t, nil)
	o, out := modeledRun(t, u, secretly)
	o.Models.Record = true
	task, err := Run(t.Context(), o)
	if err != nil || out.String() != "200\n502\n403\n" {
		t.Fatalf("%v, %+v, %s", err, task, out)
	}
	name := filepath.Join(task.Dir, ModelsFile)
	if st, err := os.Stat(name); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if !slices.ContainsFunc(task.Notes, func(n string) bool { return strings.HasSuffix(n, "is kept in "+name) }) {
		t.Errorf("the notes are %q", task.Notes)
	}
	lines, _ := recordedLines(t, name)
	if len(lines) != 4 {
		t.Fatalf("%d lines", len(lines))
	}
	sent := regexp.MustCompile(`rlease_[A-Za-z0-9_-]+`).ReplaceAllString(u.bodies()[0], "[the run's model lease]")
	if l := lines[0]; l.Call != 1 || l.Provider != "anthropic" || l.Endpoint != "messages" || l.Model != "m" || *l.Request != sent || !strings.Contains(sent, "ask 1148 [the run's model lease]") {
		t.Errorf("the request is kept as %+v: %s", l, *l.Request)
	}
	if l := lines[1]; l.Call != 1 || l.Status != 200 || !strings.Contains(*l.Answer, upstreamSays+" ") || !json.Valid([]byte(*l.Answer)) {
		t.Errorf("the answer is kept as %+v: %s", l, *l.Answer)
	}
	if l := lines[3]; l.Call != 2 || l.Status != 502 || !strings.Contains(*l.Answer, "gave a broken answer") {
		t.Errorf("the answer to the second is kept as %+v: %s", l, *l.Answer)
	}
	if list := holders(t, o.Home, providerKey); len(list) > 0 {
		t.Errorf("the provider's key is in %q", list)
	}
	for action, want := range map[string][]string{
		"model.call":   {`"request_sha256":"` + lines[0].SHA256 + `"`, `"request_sha256":"` + lines[2].SHA256 + `"`, `{"input":{"endpoint":"messages"}}`},
		"model.answer": {`"answer_sha256":"` + lines[1].SHA256 + `","call":1,"status":200`, `"answer_sha256":"` + lines[3].SHA256 + `","call":2,"status":502`},
	} {
		rows, err := o.Store.Audit(t.Context(), store.AuditFilter{Action: action, RunID: task.ID})
		if err != nil || len(rows) != len(want) {
			t.Fatalf("%s: %d rows, %v", action, len(rows), err)
		}
		for i, r := range rows {
			if !strings.Contains(string(r.Detail), want[i]) || strings.Contains(string(r.Detail), "1148") {
				t.Errorf("%s: %s, want %s", action, r.Detail, want[i])
			}
		}
	}
}

// Without that nothing of it is in any file: neither the run's nor the record's.
func TestModelContentIsNotKept(t *testing.T) {
	u := newUpstream(t, nil)
	o, out := modeledRun(t, u, secretly)
	task, err := Run(t.Context(), o)
	if err != nil || out.String() != "200\n502\n403\n" || !strings.Contains(u.bodies()[0], "ask 1148") {
		t.Fatalf("%v, %+v, %s, %q", err, task, out, u.bodies())
	}
	for _, text := range []string{"ask 1148", upstreamSays, ModelsFile} {
		if list := holders(t, o.Home, text); len(list) > 0 {
			t.Errorf("%q is in %q", text, list)
		}
	}
	if rows, err := o.Store.Audit(t.Context(), store.AuditFilter{Action: "model.answer"}); err != nil || len(rows) > 0 {
		t.Errorf("%+v, %v", rows, err)
	}
}

// A record has an end, in the file and in memory, and says what is missing. No half of a secret is at an end.
func TestRecordIsBounded(t *testing.T) {
	const key = "sk-of-the-provider-0123456789"
	name := filepath.Join(t.TempDir(), "models.jsonl")
	m, err := newModelRecord(name, redact.New(redact.Pair{Secret: key, Instead: "[key]"}))
	must(t, err)
	long := strings.Repeat("x", mostRecorded-10) + key + strings.Repeat("y", 100)
	w, err := m.keep(broker.Call{Model: "m"}, []byte(long))
	must(t, err)
	k := w.(*recordedCall)
	m.held = mostHeld - 30
	for _, part := range []string{"this is an answer", " that is longer than there is room for"} {
		if n, err := k.Write([]byte(part)); n != len(part) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if k.end(200) == "" || m.held != mostHeld-30 {
		t.Errorf("%d bytes are held", m.held)
	}
	m.room = 300
	for range 3 {
		w, err := m.keep(broker.Call{Model: "m"}, bytes.Repeat([]byte("z"), 300))
		if err != nil || w.(*recordedCall).request != "" || w.(*recordedCall).end(0) != "" {
			t.Errorf("a call without room: %v, %v", w, err)
		}
	}
	must(t, m.close())
	lines, last := recordedLines(t, name)
	if len(lines) != 4 {
		t.Fatalf("%d lines", len(lines))
	}
	if l := lines[0]; len(*l.Request) != mostRecorded || !strings.HasSuffix(*l.Request, "x[key]yyyyy") || l.LeftOut != 95 {
		t.Errorf("the request ends with %q, and %d bytes are missing", (*l.Request)[mostRecorded-20:], l.LeftOut)
	}
	if l := lines[1]; *l.Answer != "this is an answer that is long" || l.LeftOut != 25 {
		t.Errorf("the answer is %q, and %d bytes are missing", *l.Answer, l.LeftOut)
	}
	left, _ := last["missing"].(map[string]any)
	if left["texts"] != 6.0 || left["bytes"] != 900.0 {
		t.Errorf("the last line is %v", last)
	}
}
