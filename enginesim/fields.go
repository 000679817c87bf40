package enginesim

import (
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
)

// readRequest reads what a page of the simulator's own is sent. A field that there is not
// is an error that names those that there are.
func readRequest[T any](r *http.Request, into *T) error {
	err := json.UnmarshalRead(io.LimitReader(r.Body, 64<<10), into, json.RejectUnknownMembers(true))
	if errors.Is(err, json.ErrUnknownName) {
		return fmt.Errorf("%w; there are %s", err, strings.Join(fieldNames(reflect.TypeFor[T]()), ", "))
	}
	return err
}

// fieldNames returns the names that the fields of a struct have in JSON.
func fieldNames(of reflect.Type) (names []string) {
	for field := range of.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}
