package eliza

/*
#include <stdlib.h>
#include "eliza-inference-ffi.h"
*/
import "C"

import (
	"sync"
	"unsafe"
)

// Config is what one stream generates and how; the header describes the fields. An empty string
// is passed as NULL: not set. Start from DefaultConfig.
type Config struct {
	MaxTokens       int32
	Temperature     float32
	TopP            float32
	TopK            int32
	RepeatPenalty   float32
	SlotID          int32
	PromptCacheKey  string
	DraftMin        int32
	DraftMax        int32
	MTPDrafterPath  string
	GBNFGrammar     string
	DisableThinking bool
	NGPULayers      int32
	CacheTypeK      string
	CacheTypeV      string
}

// DefaultConfig is greedy decoding without a cap. Its SlotID is -1, since 0 would name a
// conversation, whose state is kept.
func DefaultConfig() Config { return Config{SlotID: -1} }

// Step is one call of Next.
type Step struct {
	Done     bool // it was the last one of the generation
	Tokens   []int32
	Text     string
	Drafted  int32
	Accepted int32
}

// Stream is one sequence of tokens and what is generated on it.
type Stream struct {
	handle *C.EliLlmStream
	mutex  sync.Mutex // keeps Close from beginning while Cancel runs
}

// Open opens a stream. Close it; it may outlive the context.
func (c *Context) Open(config Config) (*Stream, error) {
	var strings []unsafe.Pointer
	defer func() {
		for _, text := range strings {
			C.free(text)
		}
	}()
	cString := func(text string) *C.char {
		if text == "" {
			return nil
		}
		copied := C.CString(text)
		strings = append(strings, unsafe.Pointer(copied))
		return copied
	}
	converted := C.eliza_llm_stream_config_t{
		max_tokens:       C.int32_t(config.MaxTokens),
		temperature:      C.float(config.Temperature),
		top_p:            C.float(config.TopP),
		top_k:            C.int32_t(config.TopK),
		repeat_penalty:   C.float(config.RepeatPenalty),
		slot_id:          C.int32_t(config.SlotID),
		prompt_cache_key: cString(config.PromptCacheKey),
		draft_min:        C.int32_t(config.DraftMin),
		draft_max:        C.int32_t(config.DraftMax),
		mtp_drafter_path: cString(config.MTPDrafterPath),
		gbnf_grammar:     cString(config.GBNFGrammar),
		disable_thinking: C.int32_t(flag(config.DisableThinking)),
		n_gpu_layers:     C.int32_t(config.NGPULayers),
		cache_type_k:     cString(config.CacheTypeK),
		cache_type_v:     cString(config.CacheTypeV),
	}
	var message *C.char
	handle := C.eliza_inference_llm_stream_open(c.handle, &converted, &message)
	if handle == nil {
		return nil, newError(0, message)
	}
	return &Stream{handle: handle}, nil
}

// Close closes the stream; no other call on it but Cancel may be running. Closing twice does
// nothing.
func (s *Stream) Close() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	C.eliza_inference_llm_stream_close(s.handle)
	s.handle = nil
}

// Cancel may be called by any goroutine at any time: a running Prefill or Next stops inside its
// step and fails with code -7, and so does every later one until Reset or ResetKeep. It does
// nothing to a closed stream.
func (s *Stream) Cancel() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.handle != nil {
		C.eliza_inference_llm_stream_cancel(s.handle)
	}
}

// Prefill appends prompt tokens and decodes them.
func (s *Stream) Prefill(tokens []int32) error {
	var message *C.char
	code := C.eliza_inference_llm_stream_prefill(s.handle, (*C.int32_t)(unsafe.SliceData(tokens)),
		C.size_t(len(tokens)), &message)
	_, err := check(code, message)
	return err
}

// Next runs at most one model step. What finds no room comes with the next call; 16 tokens and 256
// bytes hold any ordinary step, 1 and 5 hold something.
func (s *Stream) Next(tokensCap, textCap int) (Step, error) {
	tokens := make([]int32, tokensCap)
	text := make([]byte, textCap)
	var count C.size_t
	var drafted, accepted C.int32_t
	var message *C.char
	code := C.eliza_inference_llm_stream_next(s.handle,
		(*C.int32_t)(unsafe.SliceData(tokens)), C.size_t(len(tokens)), &count,
		chars(text), C.size_t(len(text)), &drafted, &accepted, &message)
	if code < 0 {
		return Step{}, newError(code, message)
	}
	return Step{
		Done:     code == 1,
		Tokens:   tokens[:count],
		Text:     C.GoString(chars(text)),
		Drafted:  int32(drafted),
		Accepted: int32(accepted),
	}, nil
}

// SaveSlot writes the stream's tokens and KV cache to a file.
func (s *Stream) SaveSlot(path string) error {
	file := C.CString(path)
	defer C.free(unsafe.Pointer(file))
	var message *C.char
	_, err := check(C.eliza_inference_llm_stream_save_slot(s.handle, file, &message), message)
	return err
}

// RestoreSlot replaces them by those of such a file.
func (s *Stream) RestoreSlot(path string) error {
	file := C.CString(path)
	defer C.free(unsafe.Pointer(file))
	var message *C.char
	_, err := check(C.eliza_inference_llm_stream_restore_slot(s.handle, file, &message), message)
	return err
}

// Reset starts over; after a Cancel it makes the stream usable again. Its error has no message.
func (s *Stream) Reset() error {
	_, err := check(C.eliza_inference_llm_stream_reset(s.handle), nil)
	return err
}

// ResetKeep does the same but keeps the first tokens of the sequence; it returns how many.
func (s *Stream) ResetKeep(keep int32) (int, error) {
	return check(C.eliza_inference_llm_stream_reset_keep(s.handle, C.int32_t(keep)), nil)
}
