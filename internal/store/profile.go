package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"
)

// Profile is what a keyed caller may ask of a sandbox. Package access gives its spec a meaning.
type Profile struct {
	Name      string          `json:"name"`
	Spec      json.RawMessage `json:"spec"`
	CreatedAt time.Time       `json:"created_at"`
	UpdatedAt time.Time       `json:"updated_at"`
}

func scanProfile(rows *sql.Rows) (p Profile, err error) {
	var spec string
	var created, updated int64
	err = rows.Scan(&p.Name, &spec, &created, &updated)
	p.Spec, p.CreatedAt, p.UpdatedAt = json.RawMessage(spec), fromMilli(created), fromMilli(updated)
	return p, err
}

// PutProfile records a profile, in place of the one with this name if there is one.
func (s *Store) PutProfile(ctx context.Context, p Profile) (Profile, error) {
	if err := checkName("", "", p.Name); err != nil {
		return Profile{}, err
	}
	if err := checkText("the profile", string(p.Spec), MaxContent); err != nil {
		return Profile{}, err
	}
	if !json.Valid(p.Spec) {
		return Profile{}, fmt.Errorf("the profile %q is %w: it is no JSON", p.Name, ErrInvalid)
	}
	p.UpdatedAt = Now()
	err := s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO profiles (name, spec, created_at, updated_at) VALUES (?, ?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET spec = excluded.spec, updated_at = excluded.updated_at`,
			p.Name, string(p.Spec), p.UpdatedAt.UnixMilli(), p.UpdatedAt.UnixMilli())
		if err != nil {
			return fmt.Errorf("cannot record profile %s: %w", p.Name, err)
		}
		if p, err = profile(ctx, tx, p.Name); err != nil {
			return err
		}
		return happened(ctx, tx, EventProfileChanged, p.Name, "", nil)
	})
	if err != nil {
		return Profile{}, err
	}
	return p, nil
}

func profile(ctx context.Context, q querier, name string) (Profile, error) {
	found, err := collect(ctx, q, scanProfile, `SELECT name, spec, created_at, updated_at FROM profiles WHERE name = ?`, name)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("profile %q: %w", name, ErrNotFound)
	}
	if err != nil {
		return Profile{}, err
	}
	return found[0], nil
}

// Profile finds the profile with this name.
func (s *Store) Profile(ctx context.Context, name string) (Profile, error) {
	return profile(ctx, s.reads, name)
}

// Profiles gives all profiles by name.
func (s *Store) Profiles(ctx context.Context) ([]Profile, error) {
	return collect(ctx, s.reads, scanProfile, `SELECT name, spec, created_at, updated_at FROM profiles ORDER BY name`)
}

// DeleteProfile forgets a profile. One that an agent or a live key names is refused with ErrInUse.
func (s *Store) DeleteProfile(ctx context.Context, name string) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		if _, err := profile(ctx, tx, name); err != nil {
			return err
		}
		users, err := collect(ctx, tx, scanText, `SELECT 'agent ' || name FROM agents WHERE profile = ?
			UNION ALL SELECT 'key ' || id FROM keys WHERE profile = ? AND revoked_at IS NULL AND expires_at > ?`,
			name, name, Now().UnixMilli())
		if err != nil {
			return err
		}
		if len(users) > 0 {
			return fmt.Errorf("profile %q is %w: %d name it, such as %s", name, ErrInUse, len(users), users[0])
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM profiles WHERE name = ?`, name); err != nil {
			return fmt.Errorf("cannot forget profile %s: %w", name, err)
		}
		return happened(ctx, tx, EventProfileDeleted, name, "", nil)
	})
}
