package run

import (
	"testing"

	"ravi/internal/adapter"
	"ravi/sandbox"
)

// A volume is in a program's way where the program has files, above them and beneath them, and nowhere else.
func TestVolumeOver(t *testing.T) {
	claude, ok := adapter.Lookup("claude")
	if !ok {
		t.Fatal("there is no claude")
	}
	l, err := claude.Launch(adapter.Setup{Prompt: "x", BaseURL: "http://b.example/a", Token: "t", Path: "claude", Home: "/home/user", ContextDir: "/ravi/context"})
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]bool{
		"/home": true, "/home/user": true, "/home/user/": true, "/home/user/.claude": true, "/home/user/.claude/projects/x": true,
		"/home/user/.claude.json": true, "/home/user/.ravi": true, "/home/user/../user/.claude": true,
		"/home/user/.cache": false, "/home/user/.codex": false, "/home/user2": false, "/home/root/.claude": false, "/hom": false, "/srv/home/user": false,
	} {
		volumes := []sandbox.Volume{{Guest: "/srv/other"}, {Guest: at}}
		if got := volumeOver("/home/user", claude, l, volumes); (got != "") != want {
			t.Errorf("%s: %q", at, got)
		}
	}
}
