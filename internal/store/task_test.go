package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTaskRoundTrip(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	w := fillOnce(t, s)
	want := Task{AgentID: w.agent.ID, SessionID: w.session.ID, Title: "mend it", Body: "all\nof it", Author: "Maria", KeyID: "ctx_a"}
	got, err := s.InsertTask(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	want.ID, want.Status, want.CreatedAt, want.UpdatedAt = got.ID, TaskOpen, got.CreatedAt, got.CreatedAt
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("given back:\n%s", diff)
	}
	stored, err := s.Task(ctx, got.ID)
	if diff := cmp.Diff(want, stored); err != nil || diff != "" {
		t.Errorf("stored: %v\n%s", err, diff)
	}
	changed, err := s.UpdateTask(ctx, got.ID, func(k *Task) error { k.Title, k.AgentID, k.SessionID = "all of it", "", ""; return nil })
	if err != nil || changed.Title != "all of it" || changed.AgentID != "" {
		t.Errorf("changed: %+v, %v", changed, err)
	}
	if stored, err := s.Task(ctx, got.ID); err != nil || cmp.Diff(changed, stored) != "" {
		t.Errorf("stored: %+v, %v", stored, err)
	}
	for name, change := range map[string]func(*Task) error{
		"id": func(k *Task) error { k.ID = "tskx"; return nil }, "status": func(k *Task) error { k.Status = TaskDone; return nil },
		"author": func(k *Task) error { k.Author = "me"; return nil }, "key": func(k *Task) error { k.KeyID = ""; return nil },
		"no title": func(k *Task) error { k.Title = ""; return nil }, "agent": func(k *Task) error { k.AgentID = "agtnone"; return nil },
	} {
		if _, err := s.UpdateTask(ctx, got.ID, change); err == nil {
			t.Errorf("%s was changed", name)
		}
	}
	for name, test := range map[string]struct {
		task Task
		want error
		says string
	}{
		"agent":   {Task{Title: "x", AgentID: "agtnone"}, ErrNotFound, `agent "agtnone"`},
		"session": {Task{Title: "x", SessionID: "sesnone"}, ErrNotFound, `session "sesnone"`},
		"title":   {Task{}, ErrInvalid, "title"},
		"status":  {Task{Title: "x", Status: "odd"}, ErrInvalid, "odd"},
		"body":    {Task{Title: "x", Body: strings.Repeat("x", MaxText+1)}, ErrTooLarge, ""},
		"bytes":   {Task{Title: "x\xff"}, ErrInvalid, "UTF-8"},
		"zero":    {Task{Title: "x", Body: "a\x00b"}, ErrInvalid, "zero"},
	} {
		if _, err := s.InsertTask(ctx, test.task); !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every change of status is written down; what is over is opened again and nothing else.
func TestTaskStatus(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	for _, from := range TaskStatuses {
		for _, to := range TaskStatuses {
			task, err := s.InsertTask(ctx, Task{Title: "x", Status: from})
			if err != nil {
				t.Fatal(err)
			}
			if from.Final() != (task.EndedAt != nil) {
				t.Errorf("%s ended at %v", from, task.EndedAt)
			}
			after, err := s.SetTaskStatus(ctx, task.ID, to, TaskComment{Text: "why", Author: "Ada", KeyID: "ctx_a", RunID: "run1", Kind: CommentReport, TaskID: "other"})
			said, commentsErr := s.Comments(ctx, task.ID, CommentFilter{})
			if commentsErr != nil {
				t.Fatal(commentsErr)
			}
			if from.Final() && to != TaskOpen {
				if !errors.Is(err, ErrFinal) || len(said) != 0 {
					t.Errorf("from %s to %s: %v, %v", from, to, err, said)
				}
				continue
			}
			stored, storedErr := s.Task(ctx, task.ID)
			if err != nil || after.Status != to || to.Final() != (after.EndedAt != nil) || storedErr != nil || cmp.Diff(after, stored) != "" {
				t.Errorf("from %s to %s: %+v, %v, stored %+v", from, to, after, err, stored)
			}
			if len(said) != 1 || said[0].Kind != CommentStatus || said[0].Status != to || said[0].Text != "why" || said[0].Author != "Ada" ||
				said[0].KeyID != "ctx_a" || said[0].RunID != "run1" {
				t.Errorf("from %s to %s: said %+v", from, to, said)
			}
		}
	}
	if _, err := s.SetTaskStatus(ctx, "tsknone", TaskDone, TaskComment{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown one: %v", err)
	}
	task, err := s.InsertTask(ctx, Task{Title: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.SetTaskStatus(ctx, task.ID, "odd", TaskComment{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("an odd status: %v", err)
	}
	if _, err := s.SetTaskStatus(ctx, task.ID, TaskDone, TaskComment{Text: strings.Repeat("x", MaxText+1)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too much: %v", err)
	}
	if stored, err := s.Task(ctx, task.ID); err != nil || stored.Status != TaskOpen {
		t.Errorf("it became %s without a word, %v", stored.Status, err)
	}
}

func TestComments(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	w := fillOnce(t, s)
	ids := []string{w.comment.ID}
	for i := range 4 {
		kind := CommentPlain
		if i == 2 {
			kind = CommentReport
		}
		// The clock goes back meanwhile.
		c, err := s.AddComment(ctx, TaskComment{TaskID: w.task.ID, Kind: kind, Text: fmt.Sprint(i), CreatedAt: Now().AddDate(0, 0, -i)})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, c.ID)
	}
	list := func(f CommentFilter) (out []string) {
		t.Helper()
		found, err := s.Comments(ctx, w.task.ID, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range found {
			out = append(out, c.ID)
		}
		return out
	}
	if diff := cmp.Diff(ids, list(CommentFilter{})); diff != "" {
		t.Errorf("all:\n%s", diff)
	}
	if diff := cmp.Diff(ids[2:4], list(CommentFilter{After: ids[1], Limit: 2})); diff != "" {
		t.Errorf("a page:\n%s", diff)
	}
	if diff := cmp.Diff(ids[3:4], list(CommentFilter{Kind: CommentReport})); diff != "" {
		t.Errorf("reports:\n%s", diff)
	}
	if _, err := s.Comments(ctx, w.task.ID, CommentFilter{After: "comnone"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("after an unknown one: %v", err)
	}
	for name, test := range map[string]struct {
		comment TaskComment
		want    error
	}{
		"task":   {TaskComment{TaskID: "tsknone"}, ErrNotFound},
		"kind":   {TaskComment{TaskID: w.task.ID, Kind: CommentStatus}, ErrInvalid},
		"status": {TaskComment{TaskID: w.task.ID, Status: TaskDone}, ErrInvalid},
		"size":   {TaskComment{TaskID: w.task.ID, Text: strings.Repeat("x", MaxText+1)}, ErrTooLarge},
		"author": {TaskComment{TaskID: w.task.ID, Author: strings.Repeat("x", MaxLine+1)}, ErrTooLarge},
	} {
		if _, err := s.AddComment(ctx, test.comment); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(list(CommentFilter{})) != len(ids) {
		t.Error("a refused one was added")
	}
}

func TestListTasks(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	w := fillOnce(t, s)
	all := []string{w.task.ID}
	for i := range 5 {
		task := Task{Title: fmt.Sprint(i), CreatedAt: Now().AddDate(0, 0, -i)} // the clock goes back
		if i%2 == 0 {
			task.AgentID = w.agent.ID
		}
		if i > 2 {
			task.Status = TaskBlocked
		}
		got, err := s.InsertTask(ctx, task)
		if err != nil {
			t.Fatal(err)
		}
		all = append([]string{got.ID}, all...)
	}
	for name, test := range map[string]struct {
		filter TaskFilter
		want   []string
	}{
		"all": {TaskFilter{}, all}, "limit": {TaskFilter{Limit: 2}, all[:2]}, "page": {TaskFilter{Limit: 2, Before: all[1]}, all[2:4]},
		"status": {TaskFilter{Status: TaskBlocked}, all[:2]}, "agent": {TaskFilter{AgentID: w.agent.ID}, []string{all[0], all[2], all[4], all[5]}},
		"both": {TaskFilter{AgentID: w.agent.ID, Status: TaskBlocked}, all[:1]}, "session": {TaskFilter{SessionID: w.session.ID}, all[5:]},
		"ids": {TaskFilter{IDs: []string{all[4], all[2], "x"}}, []string{all[2], all[4]}}, "no ids": {TaskFilter{IDs: []string{}}, nil},
		"ids, page": {TaskFilter{IDs: []string{all[4], all[2]}, Before: all[2]}, all[4:5]}, "last page": {TaskFilter{Before: all[5]}, nil},
	} {
		found, err := s.ListTasks(ctx, test.filter)
		var ids []string
		for _, k := range found {
			ids = append(ids, k.ID)
		}
		if diff := cmp.Diff(test.want, ids); err != nil || found == nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
		if test.filter.Limit == 0 && test.filter.Before == "" {
			if n, err := s.CountTasks(ctx, test.filter); err != nil || n != len(test.want) {
				t.Errorf("%s: counted %d, %v", name, n, err)
			}
		}
	}
	if _, err := s.ListTasks(ctx, TaskFilter{Before: "tsknone"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("before an unknown one: %v", err)
	}
}
