#include "llama/slot_file.h"

#include <hash/xxhash/xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "platform/files.h"
#include "platform/paths.h"
#include "support/error.h"

namespace eliza::llama {
namespace fs = std::filesystem;
namespace {

constexpr char slot_magic[8] = {'E', 'L', 'I', 'Z', 'S', 'L', 'O', 'T'};
constexpr uint32_t slot_version = 1;

// As it lies in the file; every platform of the library is little endian.
struct Header {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint64_t checksum;  // XXH64 of everything behind it
  uint64_t model;
  uint32_t context_size;
  uint32_t cache_type_k;
  uint32_t cache_type_v;
  uint32_t tokens;
  uint32_t decoded;
  uint32_t exact;
  uint32_t logits;
  uint32_t flash_attention;
  uint64_t cache_bytes;
  uint32_t generating;
  uint32_t reserved;
};
static_assert(sizeof(Header) == 80, "the format has no padding");
constexpr size_t checked_from = 24;

[[noreturn]] void refuse(const std::string& filename, const std::string& reason) {
  throw Error(ELIZA_ERR_INVALID_ARG, "slot file " + quoted(filename) + " " + reason);
}

std::string reason_of(int error) { return std::strerror(error); }

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

// Removes a file that did not become the slot.
class TemporaryFile {
 public:
  explicit TemporaryFile(fs::path path) : path_(std::move(path)) {}
  ~TemporaryFile() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const fs::path& path() const { return path_; }
  void release() { path_.clear(); }

 private:
  fs::path path_;
};

uint64_t checksum_of(const Header& header, const Slot& slot) {
  const auto& [sequence, generating, state] = slot;
  const std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> hash(XXH64_createState(),
                                                                        XXH64_freeState);
  if (!hash) throw std::bad_alloc();
  XXH64_reset(hash.get(), 0);
  const auto* bytes = reinterpret_cast<const uint8_t*>(&header);
  XXH64_update(hash.get(), bytes + checked_from, sizeof(header) - checked_from);
  XXH64_update(hash.get(), sequence.data(), sequence.size() * sizeof(int32_t));
  XXH64_update(hash.get(), state.logits.data(), state.logits.size() * sizeof(float));
  XXH64_update(hash.get(), state.cache.data(), state.cache.size());
  return XXH64_digest(hash.get());
}

// Where the file will be: a link stays one, what it points to is replaced.
fs::path target_of(const std::string& filename) {
  constexpr int most_links = 40;
  std::error_code problem;
  fs::path target = platform::path_of(filename);
  for (int links = 0; fs::is_symlink(fs::symlink_status(target, problem)); ++links) {
    if (links == most_links) refuse(filename, "cannot be written: it links to itself");
    target = target.parent_path() / fs::read_symlink(target, problem);
  }
  const auto status = fs::status(target, problem);
  if (fs::exists(status)) {
    if (!fs::is_regular_file(status)) refuse(filename, "cannot be written: it is not a file");
    // Renaming over it would go through; whoever made it read-only did not want that.
    if ((status.permissions() & fs::perms::owner_write) == fs::perms::none) {
      refuse(filename, "cannot be written: it is read-only");
    }
  }
  const fs::path folder = target.parent_path();
  if (!folder.empty() && !fs::is_directory(folder, problem)) {
    refuse(filename, "cannot be written: its folder does not exist");
  }
  return target;
}

template <typename T>
bool write_all(std::FILE* file, const T* items, size_t count) {
  return count == 0 || std::fwrite(items, sizeof(T), count, file) == count;
}

template <typename T>
bool read_all(std::FILE* file, std::vector<T>& items, size_t count) {
  items.resize(count);
  return count == 0 || std::fread(items.data(), sizeof(T), count, file) == count;
}

void check_identity(const std::string& filename, const Header& header,
                    const SlotIdentity& identity) {
  const auto differs = [&](const char* what, uint32_t there, uint32_t here) {
    if (there == here) return;
    refuse(filename, std::string("has ") + what + " " + std::to_string(there) +
                         ", the stream has " + std::to_string(here));
  };
  if (header.model != identity.model) refuse(filename, "is of another model");
  differs("context size", header.context_size, identity.context_size);
  differs("KV type of keys", header.cache_type_k, identity.cache_type_k);
  differs("KV type of values", header.cache_type_v, identity.cache_type_v);
  differs("flash attention", header.flash_attention, identity.flash_attention ? 1 : 0);
}

}  // namespace

void write_slot(const std::string& filename, const SlotIdentity& identity, const Slot& slot) {
  const auto& [sequence, generating, state] = slot;
  Header header{};
  std::memcpy(header.magic, slot_magic, sizeof(slot_magic));
  header.version = slot_version;
  header.header_bytes = sizeof(Header);
  header.model = identity.model;
  header.context_size = identity.context_size;
  header.cache_type_k = identity.cache_type_k;
  header.cache_type_v = identity.cache_type_v;
  header.tokens = static_cast<uint32_t>(sequence.size());
  header.decoded = static_cast<uint32_t>(state.tokens.size());
  header.exact = static_cast<uint32_t>(state.exact);
  header.logits = static_cast<uint32_t>(state.logits.size());
  header.flash_attention = identity.flash_attention ? 1 : 0;
  header.cache_bytes = state.cache.size();
  header.generating = generating ? 1 : 0;
  header.checksum = checksum_of(header, slot);

  const fs::path target = target_of(filename);
  const auto failed = [&](int error) {
    refuse(filename, "cannot be written: " + reason_of(error));
  };
  // A name of its own: the target's may be as long as names can be.
  const fs::path beside =
      target.parent_path() / (".eliza-slot-" + std::to_string(platform::process_id()) + "-" +
                              std::to_string(reinterpret_cast<uintptr_t>(&header)) + ".tmp");
  errno = 0;
  File file(platform::create_file(beside));
  if (!file) failed(errno);
  TemporaryFile temporary(beside);
  const bool written = write_all(file.get(), &header, 1) &&
                       write_all(file.get(), sequence.data(), sequence.size()) &&
                       write_all(file.get(), state.logits.data(), state.logits.size()) &&
                       write_all(file.get(), state.cache.data(), state.cache.size()) &&
                       platform::write_through(file.get());
  if (!written) failed(errno);
  if (std::fclose(file.release()) != 0) failed(errno);
  const std::error_code problem = platform::replace_file(beside, target);
  if (problem) refuse(filename, "cannot be written: " + problem.message());
  temporary.release();
  platform::write_folder_through(target.parent_path());
}

Slot read_slot(const std::string& filename, const SlotIdentity& identity) {
  const fs::path path = platform::path_of(filename);
  std::error_code problem;
  const auto status = fs::status(path, problem);
  if (!fs::exists(status)) refuse(filename, "does not exist");
  // Before it is opened: opening a pipe would wait for a writer.
  if (!fs::is_regular_file(status)) refuse(filename, "is not a file");
  errno = 0;
  const File file(platform::open_file(path));
  if (!file) refuse(filename, "cannot be read: " + reason_of(errno));

  Header header{};
  if (std::fread(&header, sizeof(header), 1, file.get()) != 1 ||
      std::memcmp(header.magic, slot_magic, sizeof(slot_magic)) != 0) {
    refuse(filename, "is not a slot file");
  }
  if (header.version != slot_version || header.header_bytes != sizeof(Header)) {
    refuse(filename, "has format version " + std::to_string(header.version) +
                         ", this library reads version " + std::to_string(slot_version));
  }
  check_identity(filename, header, identity);
  const uintmax_t size = fs::file_size(path, problem);
  const uintmax_t described = sizeof(Header) + sizeof(int32_t) * uintmax_t{header.tokens} +
                              sizeof(float) * uintmax_t{header.logits} + header.cache_bytes;
  if (problem || header.cache_bytes > size || described != size ||
      header.tokens > header.context_size || header.decoded > header.tokens ||
      header.exact > header.decoded ||
      (header.logits != 0 && header.logits != identity.vocabulary_size)) {
    refuse(filename, "is truncated or damaged");
  }

  Slot slot;
  if (!read_all(file.get(), slot.sequence, header.tokens) ||
      !read_all(file.get(), slot.state.logits, header.logits) ||
      !read_all(file.get(), slot.state.cache, header.cache_bytes) ||
      checksum_of(header, slot) != header.checksum) {
    refuse(filename, "is truncated or damaged");
  }
  slot.state.tokens.assign(slot.sequence.begin(),
                           slot.sequence.begin() + static_cast<std::ptrdiff_t>(header.decoded));
  slot.state.exact = header.exact;
  slot.generating = header.generating != 0;
  return slot;
}

}  // namespace eliza::llama
