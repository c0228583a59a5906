// Package eliza is libelizainference for Go, by cgo alone.
//
// The compiler needs the header's folder (CGO_CFLAGS=-I...) and the linker the library's
// (CGO_LDFLAGS=-L...); at run time the dynamic linker has to find the library as well.
//
// A Context may be used by any goroutines at once. A Stream serves one call at a time: a second one
// is ErrBusy, except for Cancel and Close. No goroutine has to be locked to its thread: the library
// keeps nothing in the thread that calls, and a call stays on one thread from its beginning to its
// end.
package eliza

/*
#cgo LDFLAGS: -lelizainference
#include <stdlib.h>
#include "eliza-inference-ffi.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime/cgo"
	"strings"
	"sync"
	"unsafe"
)

// What this package refuses by itself.
var (
	ErrArgument = errors.New("invalid argument")
	ErrBusy     = errors.New("the stream is busy: another call on it is running")
	ErrClosed   = errors.New("closed")
)

// Error is a failed call: the library's code and its message. Create and Open tell no code: 0.
type Error struct {
	Code    int
	Message string
}

func (e *Error) Error() string { return e.Message }

// newError takes the message over: it is copied and freed.
func newError(code C.int, message *C.char) error {
	defer C.eliza_inference_free_string(message)
	return &Error{int(code), C.GoString(message)}
}

func check(code C.int, message *C.char) (int, error) {
	if code < 0 {
		return 0, newError(code, message)
	}
	return int(code), nil
}

// cString copies a text for C, whose strings end at the first NUL. Free it.
func cString(argument, text string) (*C.char, error) {
	if strings.IndexByte(text, 0) >= 0 {
		return nil, fmt.Errorf("%w: %s contains a NUL", ErrArgument, argument)
	}
	return C.CString(text), nil
}

func checkCapacity(argument string, capacity int) error {
	if capacity < 0 {
		return fmt.Errorf("%w: %s is %d", ErrArgument, argument, capacity)
	}
	return nil
}

func flag(value bool) C.int {
	if value {
		return 1
	}
	return 0
}

// ABIVersion is the library's version of the ABI.
func ABIVersion() string { return C.GoString(C.eliza_inference_abi_version()) }

// Supported tells which families of functions answer.
func Supported() map[string]int {
	return map[string]int{
		"llm_stream":   int(C.eliza_inference_llm_stream_supported()),
		"llm_mtp":      int(C.eliza_inference_llm_mtp_supported()),
		"llm_kv_quant": int(C.eliza_inference_llm_kv_quant_supported()),
		"tokenize":     int(C.eliza_inference_tokenize_supported()),
		"tts_stream":   int(C.eliza_inference_tts_stream_supported()),
		"asr_stream":   int(C.eliza_inference_asr_stream_supported()),
		"vad":          int(C.eliza_inference_vad_supported()),
		"wakeword":     int(C.eliza_inference_wakeword_supported()),
		"speaker":      int(C.eliza_inference_speaker_supported()),
		"diariz":       int(C.eliza_inference_diariz_supported()),
	}
}

// ReleaseNulls calls every function that releases something with NULL, which each accepts.
func ReleaseNulls() {
	C.eliza_inference_destroy(nil)
	C.eliza_inference_llm_stream_close(nil)
	C.eliza_inference_asr_stream_close(nil)
	C.eliza_inference_vad_close(nil)
	C.eliza_inference_wakeword_close(nil)
	C.eliza_inference_speaker_close(nil)
	C.eliza_inference_diariz_close(nil)
	C.eliza_inference_free_string(nil)
	C.eliza_inference_free_tokens(nil)
}

// Context is a bundle; its weights are shared by all of its streams.
type Context struct {
	handle   *C.EliInferenceContext // nil once closed
	calls    sync.RWMutex           // calls share it, Close waits for them
	mutex    sync.Mutex             // guards verifier
	verifier cgo.Handle
}

// Create opens the bundle directory. Close the context.
func Create(bundle string) (*Context, error) {
	path, err := cString("bundle", bundle)
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(path))
	var message *C.char
	handle := C.eliza_inference_create(path, &message)
	if handle == nil {
		return nil, newError(0, message)
	}
	return &Context{handle: handle}, nil
}

// CreateOrNil is Create without asking why it failed.
func CreateOrNil(bundle string) *Context {
	path, err := cString("bundle", bundle)
	if err != nil {
		return nil
	}
	defer C.free(unsafe.Pointer(path))
	handle := C.eliza_inference_create(path, nil)
	if handle == nil {
		return nil
	}
	return &Context{handle: handle}
}

// Close destroys the context, after the calls on it that run. Its open streams stay usable, but
// report to no verifier any more. Closing twice does nothing.
func (c *Context) Close() {
	c.calls.Lock()
	defer c.calls.Unlock()
	if c.handle == nil {
		return
	}
	_ = c.setVerifier(nil) // fails inside the verifier only, whose handle then has to stay
	C.eliza_inference_destroy(c.handle)
	c.handle = nil
}

// begin lets a call use the handle until it calls c.calls.RUnlock.
func (c *Context) begin() error {
	c.calls.RLock()
	if c.handle == nil {
		c.calls.RUnlock()
		return fmt.Errorf("the context is %w", ErrClosed)
	}
	return nil
}

// Tokenize returns the ids of a text, with the start (and end) tokens that the model asks for.
func (c *Context) Tokenize(text string, parseSpecial bool) ([]int32, error) {
	if err := c.begin(); err != nil {
		return nil, err
	}
	defer c.calls.RUnlock()
	bytes := C.CString(text) // whole, NULs included: its length goes with it
	defer C.free(unsafe.Pointer(bytes))
	var tokens *C.int
	var count C.size_t
	var message *C.char
	code := C.eliza_inference_tokenize(c.handle, bytes, C.size_t(len(text)), 1, flag(parseSpecial),
		&tokens, &count, &message)
	if code < 0 {
		return nil, newError(code, message)
	}
	defer C.eliza_inference_free_tokens(tokens)
	return idsAt(tokens, count), nil
}

// Detokenize returns the text of ids, special tokens spelled out; capacity counts the terminator.
func (c *Context) Detokenize(ids []int32, capacity int) (string, error) {
	if err := checkCapacity("capacity", capacity); err != nil {
		return "", err
	}
	if err := c.begin(); err != nil {
		return "", err
	}
	defer c.calls.RUnlock()
	text := make([]byte, capacity)
	var message *C.char
	code := C.eliza_inference_detokenize(c.handle, (*C.int)(unsafe.SliceData(ids)),
		C.size_t(len(ids)), 0, 1, chars(text), C.size_t(len(text)), &message)
	size, err := check(code, message)
	return string(text[:size]), err
}

// Transcribe returns the text of mono PCM in [-1, 1]; not in this build.
func (c *Context) Transcribe(pcm []float32, sampleRate, capacity int) (string, error) {
	if err := checkCapacity("capacity", capacity); err != nil {
		return "", err
	}
	if err := c.begin(); err != nil {
		return "", err
	}
	defer c.calls.RUnlock()
	text := make([]byte, capacity)
	var message *C.char
	code := C.eliza_inference_asr_transcribe(c.handle, (*C.float)(unsafe.SliceData(pcm)),
		C.size_t(len(pcm)), C.int(sampleRate), chars(text), C.size_t(len(text)), &message)
	size, err := check(code, message)
	return string(text[:size]), err
}

// idsAt copies an array of the library.
func idsAt(ids *C.int, count C.size_t) []int32 {
	return append([]int32{}, unsafe.Slice((*int32)(ids), int(count))...)
}

func chars(buffer []byte) *C.char {
	return (*C.char)(unsafe.Pointer(unsafe.SliceData(buffer)))
}
