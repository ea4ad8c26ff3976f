package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"ravi/internal/store"
	"ravi/internal/term"
)

const (
	readmeName   = "README"
	manifestName = "manifest.json"
	// reserve is kept for the README and for what the manifest holds beside the entries of files.
	reserve = 32 << 10
	// maxFiles bounds memory files, and skills.
	maxFiles = 1000
	// maxTasks bounds the session's other tasks.
	maxTasks = 100
	// maxPath is as long as the path of a file can be, with its folder.
	maxPath = 220
	// maxCuts bounds what is told of cuts one by one.
	maxCuts = 20
)

// file is a file to be written.
type file struct {
	File
	content []byte
}

// builder puts a snapshot together in memory, which is bounded as it is.
type builder struct {
	st *store.Store
	o  Options

	agent   store.Agent
	session store.Session
	task    store.Task

	room  int64 // what may still be added
	files []file
	cuts  []Cut
	// moreCuts are those that are not told one by one.
	moreCuts int64
	// taken are the paths of files (true) and directories, as a file system without case sees them.
	taken map[string]bool
}

func newBuilder(st *store.Store, o Options) *builder {
	return &builder{st: st, o: o, room: o.MaxBytes - reserve, taken: map[string]bool{readmeName: true, manifestName: true}}
}

// gather reads the record. Each part may take a share of the room; what it leaves is the conversation's, which is last.
func (b *builder) gather(ctx context.Context) error {
	if err := b.who(ctx); err != nil {
		return err
	}
	share := func(eighths int64) int64 { return (b.o.MaxBytes - reserve) / 8 * eighths }
	b.instructions(share(2))
	if b.task.ID != "" {
		if err := b.ownTask(ctx, share(1)); err != nil {
			return err
		}
	}
	if b.agent.ID != "" {
		if err := b.memory(ctx, store.MemoryNote, "memory", share(2)); err != nil {
			return err
		}
		if err := b.memory(ctx, store.MemorySkill, "skills", share(1)); err != nil {
			return err
		}
	}
	if b.session.ID == "" {
		return nil
	}
	if err := b.otherTasks(ctx, share(1)); err != nil {
		return err
	}
	return b.conversation(ctx)
}

// who finds whose context it is.
func (b *builder) who(ctx context.Context) (err error) {
	if b.o.SessionID != "" {
		if b.session, err = b.st.Session(ctx, b.o.SessionID); err != nil {
			return err
		}
		b.o.SessionID = b.session.ID
	}
	if b.o.TaskID != "" {
		if b.task, err = b.st.Task(ctx, b.o.TaskID); err != nil {
			return err
		}
		b.o.TaskID = b.task.ID
	}
	switch {
	case b.o.AgentID != "":
	case b.session.ID != "":
		b.o.AgentID = b.session.AgentID
	default:
		b.o.AgentID = b.task.AgentID
	}
	if b.o.AgentID != "" {
		if b.agent, err = b.st.Agent(ctx, b.o.AgentID); err != nil {
			return err
		}
		b.o.AgentID = b.agent.ID
	}
	for _, id := range []string{b.o.SessionID, b.o.TaskID, b.o.AgentID, b.o.RunID} {
		if id != "" && !isID(id) {
			return fmt.Errorf("%q: %w", id, errNoID)
		}
	}
	if b.session.ID != "" && b.session.AgentID != b.agent.ID {
		return fmt.Errorf("session %s and agent %s: %w", b.session.ID, b.agent.ID, ErrOtherAgent)
	}
	return nil
}

// cost is how much of the room a file takes, with its entry in the manifest.
func (f file) cost() int64 {
	entry := f.File
	entry.Bytes, entry.SHA256 = 1<<60, strings.Repeat("0", 2*sha256.Size)
	doc, err := encode([]File{entry})
	if err != nil { // strings and numbers always become JSON
		panic(err)
	}
	return int64(len(f.content)) + 2*int64(len(doc)) // indented deeper there
}

// add takes a file in. Whether there is room for it was asked before.
func (b *builder) add(f file) {
	sum := sha256.Sum256(f.content)
	f.Bytes, f.SHA256 = int64(len(f.content)), hex.EncodeToString(sum[:])
	b.room -= f.cost()
	b.files = append(b.files, f)
	b.take(f.Path)
}

// take notes that a path is a file, and that those above it are directories.
func (b *builder) take(path string) {
	path = fold(path)
	b.taken[path] = true
	for i := strings.LastIndexByte(path, '/'); i >= 0; i = strings.LastIndexByte(path[:i], '/') {
		b.taken[path[:i]] = false
	}
}

// free says why a path cannot be a file: another is, also one that differs by case only, or stands in its way.
func (b *builder) free(path string) error {
	path = fold(path)
	if isFile, taken := b.taken[path]; isFile {
		return errors.New("another file has this name, but for upper and lower case")
	} else if taken {
		return errors.New("a folder has this name")
	}
	for i := strings.LastIndexByte(path, '/'); i >= 0; i = strings.LastIndexByte(path[:i], '/') {
		if b.taken[path[:i]] {
			return errors.New("a file has the name of its folder")
		}
	}
	return nil
}

// fold is the same for names that differ by case only.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			least = min(least, next)
		}
		return least
	}, s)
}

// cut notes that something is not in the snapshot.
func (b *builder) cut(path string, count int64, what string) {
	if len(b.cuts) == maxCuts {
		b.moreCuts++
		return
	}
	b.cuts = append(b.cuts, Cut{Path: clip(path, maxPath), Count: count, What: clip(what, 160)})
}

// finish adds the README and the manifest.
func (b *builder) finish() (Manifest, error) {
	if b.moreCuts > 0 {
		b.cuts = append(b.cuts, Cut{Path: "others", Count: b.moreCuts, What: "more were cut or left out"})
	}
	b.add(file{File: File{Path: readmeName, Whose: "Ravi's"}, content: b.readme()})
	m := Manifest{
		Version: 1, Time: b.o.Time.Truncate(time.Millisecond), AgentID: b.o.AgentID, SessionID: b.o.SessionID, TaskID: b.o.TaskID,
		RunID: b.o.RunID, Connected: b.o.Connected, MaxBytes: b.o.MaxBytes, Files: []File{}, Cuts: append([]Cut{}, b.cuts...),
	}
	for _, f := range b.files {
		m.Files = append(m.Files, f.File)
		m.Bytes += f.Bytes
	}
	doc, err := encode(m)
	if err != nil {
		return m, err
	}
	if all := m.Bytes + int64(len(doc)); all > b.o.MaxBytes {
		return m, fmt.Errorf("the context snapshot has %d bytes, more than the %d that it may have", all, b.o.MaxBytes)
	}
	b.files = append(b.files, file{File: File{Path: manifestName}, content: doc})
	return m, nil
}

// encode is v as it stands in a file.
func encode(v any) ([]byte, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	return term.SafeJSON([]byte(b.String())), err
}
