package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"ravi/internal/network"
)

// life is what the processes of a checkpoint know of their network: the gateway
// that they meet when they are restored has to know it as well. Nothing of it is
// of use to anybody else.
type life struct {
	// Seed and Names make the addresses that names have.
	Seed  string   `json:"seed"`
	Names []string `json:"names"`
	// Placeholders are what there is in place of secrets, by their names.
	Placeholders map[string]string `json:"placeholders"`
}

// lifeFile is where a checkpoint has it.
const lifeFile = "network.json"

// readLife reads what a checkpoint has; a sandbox without a network left nothing.
func readLife(checkpoint string) (l life, err error) {
	if checkpoint == "" {
		return l, nil
	}
	b, err := os.ReadFile(filepath.Join(checkpoint, lifeFile))
	if errors.Is(err, os.ErrNotExist) {
		return l, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err != nil {
		return l, fmt.Errorf("the checkpoint's network: %w", err)
	}
	return l, nil
}

// saveLife writes it.
func (s *Sandbox) saveLife(ctx context.Context, dir string) error {
	if s.line == nil {
		return nil
	}
	told, err := s.line.order(ctx, network.Order{ListNames: true})
	var b []byte
	if err == nil {
		b, err = json.Marshal(life{Seed: s.seed, Names: told.Names, Placeholders: s.Placeholders()})
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, lifeFile), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("saving the checkpoint's network: %w", err)
	}
	return nil
}
