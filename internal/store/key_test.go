package store

import (
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// newKey is a key below parent that lives for an hour.
func newKey(parent, secret string) Key {
	sum := sha256.Sum256([]byte(secret))
	return Key{Hash: hex.EncodeToString(sum[:]), ParentID: parent, Capabilities: []string{"read:tasks"}, ExpiresAt: time.Now().Add(time.Hour)}
}
