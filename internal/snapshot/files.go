package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"ravi/internal/store"
)

// instructions are the agent's, from the operator. They are cut at the end.
func (b *builder) instructions(most int64) {
	if b.agent.Instructions == "" {
		return
	}
	b.addCut(file{File: File{Path: "AGENTS.md", Whose: "the operator's: instructions for agent " + b.name(b.agent.Name), ID: b.agent.ID}},
		b.agent.Instructions, most)
}

// addCut adds a file of a text, without its end if that is too long. It says whether there was room at all.
func (b *builder) addCut(f file, text string, most int64) bool {
	const note = 160 // for the note, and the word of it in the manifest
	text = clean(b.mask(text))
	f.content = nil
	most = min(most, b.room) - f.cost()
	if most < note {
		return false
	}
	if int64(len(text)) > most {
		keep := start(text, int(most-note))
		left := len(text) - keep
		text = text[:keep] + fmt.Sprintf("\n\n[Ravi: %d bytes are left out here, at the end of the file]\n", left)
		f.Cut = true
		b.cut(f.Path, int64(left), "bytes left out at the end")
	}
	f.content = []byte(text)
	b.add(f)
	return true
}

// memory adds the files of an agent's that are approved, the newest first, until the share is used up.
func (b *builder) memory(ctx context.Context, kind store.MemoryKind, folder string, share int64) error {
	list, err := b.st.MemoryNames(ctx, b.agent.ID, kind)
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(x, y store.MemoryFile) int {
		return cmp.Or(decided(y).Compare(decided(x)), cmp.Compare(x.Path, y.Path), cmp.Compare(x.ID, y.ID))
	})
	end := b.room - min(share, b.room)
	perFile := min(store.MaxContent+1<<10, share/4)
	added := 0
	for i, m := range list {
		path := b.mask(m.Path)
		err := store.CheckMemoryPath(path)
		if err == nil && !isID(m.ID) {
			err = errNoID
		}
		if err == nil {
			path = folder + "/" + path
			err = b.free(path)
		}
		if err != nil {
			b.cut(folder+"/"+b.name(m.Path), 0, "not written: "+b.name(err.Error()))
			continue
		}
		// By its id it is what the list was made of, whatever was written since.
		if m, err = b.st.MemoryByID(ctx, m.ID); err != nil {
			return err
		}
		if m.State != store.MemoryApproved || m.Removed {
			return fmt.Errorf("memory file %s holds and is %s", m.ID, m.State)
		}
		f := file{File: File{Path: path, Whose: b.writer(m), ID: m.ID}}
		if added == maxFiles || !b.addCut(f, m.Content, min(perFile, b.room-end)) {
			b.cut(folder, int64(len(list)-i), "files left out, the oldest")
			break
		}
		added++
	}
	return nil
}

func (b *builder) writer(m store.MemoryFile) string {
	who := "written by " + b.by(m.Author, m.KeyID)
	if m.RunID != "" {
		who += ", in run " + b.name(m.RunID)
	}
	if m.DecidedBy != "" {
		who += ", approved by " + b.name(m.DecidedBy)
	}
	return who + ", " + moment(decided(m))
}

// decided is when a file began to hold.
func decided(m store.MemoryFile) time.Time {
	if m.DecidedAt == nil {
		return m.CreatedAt
	}
	return *m.DecidedAt
}
