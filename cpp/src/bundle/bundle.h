#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace eliza {

// A bundle is a directory; its text artifacts lie under `text/`. Nothing here reads a model.

// Throws Error(ELIZA_ERR_BUNDLE_INVALID) unless `bundle_dir` is a readable directory with a `text/`
// directory in it.
void check_bundle(const std::string& bundle_dir);

// The bundle's text GGUF: the only `text/*.gguf`, or the one the manifest names. Parts of a split
// model count as one, its first part is returned; `mmproj*` never counts. Throws
// Error(ELIZA_ERR_BUNDLE_INVALID) where there is none or the choice is not clear.
std::filesystem::path find_text_model(const std::string& bundle_dir);

// Whether the bundle has text GGUF files among which find_text_model would look.
bool has_text_model(const std::string& bundle_dir) noexcept;

// Whether the bundle has a file that find_tokenizer would find or complain of.
bool has_tokenizer(const std::string& bundle_dir) noexcept;

// The only `text/*.tokenizer`: a vocabulary in a file of its own, for a text model whose artifact
// has none that the library can read. As find_only.
std::optional<std::filesystem::path> find_tokenizer(const std::string& bundle_dir);

// The only entry of `text/` with this extension (with dot), a readable regular file; nullopt where
// there is none. Throws Error(ELIZA_ERR_BUNDLE_INVALID), which calls it `what`, where there are
// several or it cannot be read.
std::optional<std::filesystem::path> find_only(const std::string& bundle_dir,
                                               const std::string& extension,
                                               const std::string& what);

// Entries of `text/` whose extension is `extension` (with dot), sorted by name; empty where there
// are none or the directory cannot be read. Never throws.
std::vector<std::filesystem::path> text_entries(const std::string& bundle_dir,
                                                const std::string& extension) noexcept;

}  // namespace eliza
