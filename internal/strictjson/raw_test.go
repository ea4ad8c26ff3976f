package strictjson

import "testing"

func TestRaw(t *testing.T) {
	var d struct {
		A struct{ Later, Missing Raw }
	}
	if err := Decode([]byte("{\"a\":\n {\"later\":\n  {\"level\":3}}}"), &d); err != nil {
		t.Fatal(err)
	}
	var p picky
	if err := d.A.Later.Decode(&p); err != nil || p.Level != 3 {
		t.Fatalf("got %+v, %v", p, err)
	}
	if err := d.A.Missing.Decode(&p); err != nil || p.Level != 3 || !d.A.Missing.IsZero() {
		t.Fatalf("a missing part: %+v, %v", p, err)
	}
	var other struct{ Levle int }
	err := d.A.Later.Decode(&other)
	if want := "line 3, column 4: a.later.level: unknown key; did you mean levle?"; err == nil || err.Error() != want {
		t.Fatalf("got  %v\nwant %v", err, want)
	}
}
