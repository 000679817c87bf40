package enginesim

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
)

// bodies are reused between requests: a prompt of many thousand tokens is read
// into memory that is there already.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxKeptBody is the largest buffer worth keeping, in bytes.
const maxKeptBody = 1 << 20

func keepBody(body *bytes.Buffer) {
	if body.Cap() <= maxKeptBody {
		bodies.Put(body)
	}
}

// readBody reads the whole body of a request. The buffer must go back by
// keepBody, whether there is an error or not.
func readBody(w http.ResponseWriter, r *http.Request) (*bytes.Buffer, *apiError) {
	body := bodies.Get().(*bytes.Buffer)
	body.Reset()
	if r.ContentLength > 0 && r.ContentLength <= maxBody {
		body.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return body, &apiError{
			status:  http.StatusRequestEntityTooLarge,
			kind:    "Request Entity Too Large",
			message: fmt.Sprintf("The body is larger than %d bytes.", tooLarge.Limit),
		}
	}
	if err != nil {
		return body, badRequest("The body could not be read to its end.", "")
	}
	return body, nil
}

// lenient accepts what Python's parser accepts: of members of the same name the
// last one counts.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), json.FormatNilSliceAsNull(true), json.FormatNilMapAsNull(true))

// decode parses a request's body. What it says about errors holds where and
// what kind, never what the client wrote.
func decode(body []byte, into any) *apiError {
	err := json.Unmarshal(body, into, lenient)
	if err == nil {
		return nil
	}
	if semantic, ok := errors.AsType[*json.SemanticError](err); ok {
		return &apiError{
			status:  http.StatusBadRequest,
			kind:    "Bad Request",
			message: fmt.Sprintf("Input should be a valid %s at %s (byte %d).", jsonName(semantic), semantic.JSONPointer, semantic.ByteOffset),
		}
	}
	offset := int64(len(body))
	if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		offset = syntactic.ByteOffset
	}
	return &apiError{status: http.StatusBadRequest, kind: "Bad Request", message: fmt.Sprintf("JSON decode error at byte %d.", offset)}
}

func jsonName(err *json.SemanticError) string {
	if err.GoType == nil {
		return "value"
	}
	switch kind := err.GoType.Kind().String(); kind {
	case "struct", "map":
		return "object"
	case "slice":
		return "list"
	case "bool", "string":
		return kind
	default:
		return "number"
	}
}

// apiError is an error in the words of the API it is answered by.
type apiError struct {
	status  int
	kind    string
	message string
	param   string
}

var errNotFound = &apiError{status: http.StatusNotFound, kind: "Not Found", message: "Not Found"}

func badRequest(message, param string) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "BadRequestError", message: message, param: param}
}

// writeError answers in the shape of vLLM's OpenAI pages.
func writeError(w http.ResponseWriter, e *apiError) {
	type shape struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	body := shape{Message: e.message, Type: e.kind, Code: e.status}
	if e.param != "" {
		body.Param = &e.param
	}
	writeJSON(w, e.status, map[string]shape{"error": body})
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value, lenient, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // what it repeats of a request is quoted; a client that left is noticed elsewhere
}
