package snapshot

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ravi/internal/store"
)

// said are the messages in conversation.jsonl, and what it says is left out.
func said(t failer, text string) (lines []line, left int64) {
	t.Helper()
	for i, doc := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		var l struct {
			line
			Left int64 `json:"left_out_messages"`
		}
		if doc == "" {
			continue
		}
		if err := json.Unmarshal([]byte(doc), &l); err != nil {
			t.Errorf("line %d: %v", i, err)
		}
		if l.Left > 0 {
			left = l.Left
			continue
		}
		lines = append(lines, l.line)
	}
	return lines, left
}

// A session of 20 MB, with one message of 10 MB, comes to what it may be.
func TestHugeSession(t *testing.T) {
	w := newWorld(t)
	w.task("tsk1", "t", "b")
	for i := range 1000 {
		w.forgeMessage(i+1, "flood", fmt.Sprintf("%d ", i)+strings.Repeat("\x1b\n", 5000))
	}
	w.forgeMessage(1001, "huge", "HEAD"+strings.Repeat("é", 5<<20)+"TAIL")
	w.forgeMessage(1002, "Ann", "the last word")
	m, files := w.build(options())
	lines, left := said(t, files["conversation.jsonl"])
	if n := len(lines); n < 10 || lines[n-1].Text != "the last word" || left != 1002-int64(n) || lines[0].Seq != left+1 {
		t.Fatalf("%d messages, %d left out, the first is %d", n, left, lines[0].Seq)
	}
	huge := lines[len(lines)-2]
	if !strings.HasPrefix(huge.Text, "HEADé") || !strings.HasSuffix(huge.TextEnd, "éTAIL") || len(huge.Text)+huge.LeftOutBytes+len(huge.TextEnd) != 10<<20+8 {
		t.Errorf("the huge one: %d, %d, %d bytes", len(huge.Text), huge.LeftOutBytes, len(huge.TextEnd))
	}
	for file, want := range map[string]string{
		"conversation.md": fmt.Sprintf("\n[%d bytes are left out here]\n", huge.LeftOutBytes), readmeName: fmt.Sprintf("conversation: %d messages left out, the oldest", left),
	} {
		if !strings.Contains(files[file], want) {
			t.Errorf("%s does not say %q", file, want)
		}
	}
	if !strings.Contains(files["conversation.md"], fmt.Sprintf("\n[the %d oldest messages are left out here]\n", left)) {
		t.Error("conversation.md does not tell what is left out")
	}
	if m.Bytes < DefaultMaxBytes*3/4 {
		t.Errorf("only %d bytes are used", m.Bytes)
	}
}

// Of a huge last message there is some in the smallest snapshot, even if each of its bytes takes six.
func TestTheNewestAlwaysFits(t *testing.T) {
	w := newWorld(t)
	w.task("tsk1", "t", "b")
	for i, unit := range []string{"\x01", "\n", "\u009b", "a"} {
		w.forgeMessage(i+1, "huge", strings.Repeat(unit, 1<<20))
		o := options()
		o.MaxBytes = MinBytes
		_, files := w.build(o)
		if lines, _ := said(t, files["conversation.jsonl"]); len(lines) == 0 || lines[len(lines)-1].Seq != int64(i+1) {
			t.Errorf("%q: the newest of %d is not there", unit, i+1)
		}
	}
}

// Of very many memory files the newest are there, and none is half of another's.
func TestManyMemoryFiles(t *testing.T) {
	w := newWorld(t)
	w.task("tsk1", "t", "b")
	tx := must(w.raw.BeginTx(t.Context(), nil))(t)
	const n = 5000
	for i := range n {
		if _, err := tx.Exec(`INSERT INTO memory (id, agent_id, kind, path, content, state, created_at, decided_at) VALUES (?, 'agt1', 'memory', ?, 'x', 'approved', 0, ?)`,
			fmt.Sprintf("mem%d", i), fmt.Sprintf("f%d", (i*7919)%n), i); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	m, files := w.build(options())
	kept := 0
	for i := range n {
		_, there := files[fmt.Sprintf("memory/f%d", (i*7919)%n)]
		if there {
			kept++
		}
		if there != (i >= n-maxFiles) {
			t.Fatalf("file %d of %d is there: %v", i, n, there)
		}
	}
	if kept != maxFiles || len(m.Cuts) != 1 || m.Cuts[0].Count != n-maxFiles || m.Cuts[0].Path != "memory" {
		t.Errorf("%d files, %+v", kept, m.Cuts)
	}
}

// Very many refusals are told in a few lines.
func TestManyRefusals(t *testing.T) {
	w := newWorld(t)
	w.task("tsk1", "t", "b")
	for i := range 500 {
		w.forgeMemory(fmt.Sprintf("mem%d", i), fmt.Sprintf("../%d/", i)+strings.Repeat("é\"\\", 1000), "x")
	}
	o := options()
	o.MaxBytes = MinBytes
	m, _ := w.build(o)
	if n := len(m.Cuts); n != maxCuts+1 || m.Cuts[n-1].Count != 500-maxCuts {
		t.Errorf("%d cuts, the last is %+v", n, m.Cuts[n-1])
	}
}

// Many comments, many tasks: the newest are kept.
func TestManyTasks(t *testing.T) {
	w := newWorld(t)
	for i := range 300 {
		w.forge("tasks", map[string]any{"id": fmt.Sprintf("tsk%d", i), "agent_id": "agt1", "session_id": "ses1", "title": "t", "body": strings.Repeat("b", 1000), "status": "open", "created_at": 0, "updated_at": 0})
	}
	for i := range 300 {
		w.forge("task_comments", map[string]any{"id": fmt.Sprintf("com%d", i), "task_id": "tsk1", "kind": "comment", "text": fmt.Sprintf("comment %d\n", i) + strings.Repeat("c\n", 5000), "created_at": 0})
	}
	m, files := w.build(options())
	if !strings.Contains(files["task.md"], "> comment 299\n") || strings.Contains(files["task.md"], "> comment 1\n") || !strings.Contains(files["task.md"], "oldest comments are left out here]") {
		t.Error("the task's newest comments are not what is there")
	}
	others := 0
	for i := range 300 {
		if _, ok := files[fmt.Sprintf("tasks/tsk%d.md", i)]; ok {
			others++
			if i < 300-maxTasks {
				t.Errorf("task %d is there", i)
			}
		}
	}
	if others != maxTasks {
		t.Errorf("%d other tasks", others)
	}
	// Of 300 tasks one is the run's own, which was not come to yet: the count may be off by it, no more.
	for _, c := range m.Cuts {
		if c.Path == "tasks" && (c.Count < 199 || c.Count > 200) {
			t.Errorf("%+v", c)
		}
	}
}

// texts are what costs most to show: each byte may become six.
func texts(most int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		unit := rapid.SampledFrom([]string{"\x01", "\n", "\"", "a", "é", "\u202e", "\U000e0041", "\u009b", "\xff", "\r\n", "\\", "漢\n", secret}).Draw(t, "unit")
		n := rapid.IntRange(0, most).Draw(t, "size")
		return strings.Repeat(unit, n/len(unit)+1)[:n]
	})
}

// Whatever is in the record and whatever the bound: it holds, the newest is there, what is not there is told.
func TestBounds(t *testing.T) {
	w := newWorld(t)
	rapid.Check(t, func(r *rapid.T) {
		for _, table := range []string{"messages", "task_comments", "tasks", "memory"} {
			if _, err := w.raw.Exec(`DELETE FROM ` + table); err != nil {
				r.Fatal(err)
			}
		}
		insert := func(query string, args ...any) {
			r.Helper()
			if _, err := w.raw.Exec(query, args...); err != nil {
				r.Fatal(err)
			}
		}
		short := texts(300)
		insert(`UPDATE agents SET instructions = ?`, texts(80_000).Draw(r, "instructions"))
		insert(`UPDATE sessions SET title = ?`, short.Draw(r, "title"))
		for _, id := range []string{"tsk1", "tsk2", "tsk3", "tsk4"} {
			insert(`INSERT INTO tasks (id, agent_id, session_id, title, body, status, author, created_at, updated_at) VALUES (?, 'agt1', 'ses1', ?, ?, 'open', ?, 0, 0)`,
				id, "t"+short.Draw(r, "task title"), texts(60_000).Draw(r, "body"), short.Draw(r, "task author"))
			for i := range rapid.IntRange(0, 5).Draw(r, "comments") {
				insert(`INSERT INTO task_comments (id, task_id, kind, text, author, created_at) VALUES (?, ?, 'comment', ?, ?, 0)`,
					fmt.Sprintf("com%s%d", id, i), id, texts(20_000).Draw(r, "comment"), short.Draw(r, "comment author"))
			}
		}
		for i := range rapid.IntRange(0, 40).Draw(r, "memory") {
			insert(`INSERT INTO memory (id, agent_id, kind, path, content, state, author, decided_by, created_at, decided_at) VALUES (?, 'agt1', ?, ?, ?, 'approved', ?4, ?4, 0, ?)`,
				fmt.Sprintf("mem%d", i), rapid.SampledFrom([]string{"memory", "skill"}).Draw(r, "kind"), fmt.Sprintf("%d", i)+strings.Repeat("é", rapid.IntRange(0, 99).Draw(r, "path")),
				texts(30_000).Draw(r, "content"), i)
		}
		n := rapid.IntRange(0, 60).Draw(r, "messages")
		for i := range n {
			text := texts(20_000).Draw(r, "text")
			insert(`INSERT INTO messages (id, session_id, seq, role, author, channel, text, key_id, created_at) VALUES (?, 'ses1', ?, 'user', ?, ?, ?, ?, 0)`,
				fmt.Sprintf("msg%d", i), i+1, short.Draw(r, "author"), short.Draw(r, "channel"), text, short.Draw(r, "key"))
		}
		o := options()
		o.Connected = true
		o.MaxBytes = int64(rapid.IntRange(MinBytes, 4<<20).Draw(r, "bound"))
		dir, err := os.MkdirTemp("", "snapshot")
		if err != nil {
			r.Fatal(err)
		}
		defer os.RemoveAll(dir)
		m, err := Build(w.Context(), w.st, o, dir)
		if err != nil {
			r.Fatal(err)
		}
		files := readTree(w, dir)
		verify(r, o, m, files)
		lines, left := said(r, files["conversation.jsonl"])
		if len(lines) != n-int(left) || n > 0 && (len(lines) == 0 || lines[len(lines)-1].Seq != int64(n) || lines[0].Seq != left+1) {
			r.Fatalf("of %d messages %d are there and %d left out", n, len(lines), left)
		}
		if got := strings.Count(files["conversation.md"], "\n## "); got != len(lines) {
			r.Fatalf("%d messages in the one form, %d in the other", got, len(lines))
		}
		for _, f := range m.Files {
			told := strings.Contains(files[f.Path], "left out here") || strings.Contains(files[f.Path], "left_out")
			if f.Cut && !told {
				r.Fatalf("%s is cut and does not say so", f.Path)
			}
			if !f.Cut && told {
				r.Fatalf("%s is whole and says that it is cut", f.Path)
			}
		}
		if !strings.Contains(files["AGENTS.md"], "left out here") && len(m.Cuts) == 0 && left > 0 {
			r.Fatal("what is left out is not told")
		}
	})
}

// What is written while a snapshot is made is in it or not; the messages are those up to one moment.
func TestTheClockIsTheCallers(t *testing.T) {
	w := filled(t)
	o := options()
	o.Time = time.Time{}
	before := store.Now()
	m, _ := w.build(o)
	if m.Time.Before(before) || m.Time.After(store.Now()) {
		t.Errorf("made at %v", m.Time)
	}
}

// If the reckoning were wrong, there would be no snapshot rather than one that is too large.
func TestTheBoundIsLookedAtInTheEnd(t *testing.T) {
	b := newBuilder(nil, Options{MaxBytes: MinBytes, Time: t0})
	b.add(file{File: File{Path: "AGENTS.md"}, content: make([]byte, MinBytes)})
	if m, err := b.finish(); err == nil {
		t.Errorf("%d bytes passed", m.Bytes)
	}
}

func TestMiddle(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s := rapid.String().Draw(r, "text")
		most := rapid.IntRange(3, 40).Draw(r, "most")
		head, tail, left := middle(s, most)
		if len(head)+left+len(tail) != len(s) || !strings.HasPrefix(s, head) || !strings.HasSuffix(s, tail) || len(head)+len(tail) > most && left > 0 {
			r.Fatalf("%q, %q, %d of %q", head, tail, left, s)
		}
		if left == 0 && head != s || left > 0 && len(s) <= most {
			r.Fatalf("cut or not: %q, %d of %q", head, left, s)
		}
		for _, part := range []string{head, tail, clip(s, most)} {
			if strings.ToValidUTF8(part, "") != part {
				r.Fatalf("a character was cut: %q", part)
			}
		}
	})
}
