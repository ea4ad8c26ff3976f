package snapshot

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"ravi/internal/store"
)

// pageOf is how many records with long texts are read at once.
const pageOf = 32

// ownTask adds the task that the run is for.
func (b *builder) ownTask(ctx context.Context, share int64) error {
	f, err := b.renderTask(ctx, b.task, "task.md", min(share, b.room))
	if err != nil {
		return err
	}
	b.add(f)
	return nil
}

// otherTasks adds the session's other tasks, the newest first, until the share is used up.
func (b *builder) otherTasks(ctx context.Context, share int64) error {
	filter := store.TaskFilter{SessionID: b.session.ID}
	all, err := b.st.CountTasks(ctx, filter)
	if err != nil {
		return err
	}
	end := b.room - min(share, b.room)
	perTask := max(share/8, 4<<10)
	filter.Limit = pageOf
	for seen, added := 0, 0; ; {
		page, err := b.st.ListTasks(ctx, filter)
		if err != nil {
			return err
		}
		for _, task := range page {
			if task.ID != b.task.ID {
				most := min(perTask, b.room-end)
				if added == maxTasks || most < 4<<10 {
					b.cut("tasks", int64(max(all-seen, 1)), "tasks left out, the oldest")
					return nil
				}
				if err := b.addTask(ctx, task, most); err != nil {
					return err
				}
				added++
			}
			seen++
			filter.Before = task.ID
		}
		if len(page) < pageOf || seen >= all {
			return nil
		}
	}
}

func (b *builder) addTask(ctx context.Context, task store.Task, most int64) error {
	path := "tasks/" + task.ID + ".md"
	if !isID(task.ID) {
		b.cut("tasks/"+b.name(task.ID), 0, "not written: "+errNoID.Error())
		return nil
	}
	f, err := b.renderTask(ctx, task, path, most)
	if err != nil {
		return err
	}
	b.add(f)
	return nil
}

var errNoID = errors.New("its id is none of Ravi's")

// isID says whether an id is made of what ids are made of, and can be a file's name.
func isID(id string) bool {
	return id != "" && len(id) <= 64 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
}

// renderTask shows a task with its comments in at most so many bytes, its entry in the manifest included: the newest
// comments are kept.
func (b *builder) renderTask(ctx context.Context, task store.Task, path string, most int64) (file, error) {
	f := file{File: File{Path: path, Whose: "task of " + b.by(task.Author, task.KeyID) + "; each comment says whose it is", ID: task.ID, Cut: true}}
	most -= f.cost()
	f.Cut = false

	var head strings.Builder
	fmt.Fprintf(&head, "# Task %s: %s\n\n- status: %s\n- author: %s\n- created: %s\n- changed: %s\n\n", task.ID, b.name(task.Title),
		b.word(string(task.Status)), b.by(task.Author, task.KeyID), moment(task.CreatedAt), moment(task.UpdatedAt))
	head.WriteString("What others wrote stands behind \"> \", line by line. All other lines are Ravi's.\n\n## What is to be done\n\n")
	// No text is shown in more than four times its bytes, so this leaves room for the newest comment.
	if left := quoteCut(&head, b.mask(task.Body), int(most/16)); left > 0 {
		f.Cut = true
		b.cut(path, int64(left), "bytes left out in the middle of what is to be done")
	}
	const told = 160 // of how many there are
	kept, all, shortened, err := b.comments(ctx, task.ID, most-int64(head.Len())-told, int(most/16))
	if err != nil {
		return f, err
	}
	if shortened > 0 {
		f.Cut = true
		b.cut(path, int64(shortened), "comments cut in the middle")
	}
	if all > 0 {
		fmt.Fprintf(&head, "\n## Comments: %d, the oldest first\n", all)
	}
	if left := all - len(kept); left > 0 {
		f.Cut = true
		fmt.Fprintf(&head, "\n[the %d oldest comments are left out here]\n", left)
		b.cut(path, int64(left), "comments left out, the oldest")
	}
	for _, text := range kept {
		head.WriteString(text)
	}
	f.content = []byte(head.String())
	return f, nil
}

// comments are the newest comments of a task that together have no more than most bytes as they are shown, and of which
// none is shown with more than each bytes of its text.
func (b *builder) comments(ctx context.Context, taskID string, most int64, each int) (kept []string, all, shortened int, err error) {
	type shown struct {
		text string
		cut  bool
	}
	var last []shown
	var bytes int64
	filter := store.CommentFilter{Limit: pageOf}
	for {
		page, err := b.st.Comments(ctx, taskID, filter)
		if err != nil {
			return nil, 0, 0, err
		}
		for _, c := range page {
			var w strings.Builder
			what := string(c.Kind)
			if c.Kind == store.CommentStatus {
				what = "became " + string(c.Status)
			}
			fmt.Fprintf(&w, "\n### %s · %s · %s\n\n", b.word(what), b.by(c.Author, c.KeyID), moment(c.CreatedAt))
			left := quoteCut(&w, b.mask(c.Text), each)
			last = append(last, shown{w.String(), left > 0})
			bytes += int64(w.Len())
			for bytes > most && len(last) > 0 {
				bytes -= int64(len(last[0].text))
				last = last[1:]
			}
			all++
			filter.After = c.ID
		}
		if len(page) < pageOf || filter.After == "" {
			break
		}
	}
	for _, s := range last {
		kept = append(kept, s.text)
		if s.cut {
			shortened++
		}
	}
	return kept, all, shortened, nil
}
