#include "custom_ops/core/selection.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <mutex>

#include "custom_ops/core/prefetch.h"
#include "custom_ops/core/random.h"

namespace dslide {
namespace {

inline uint64_t BitOf(int64_t place) { return uint64_t{1} << (place & 63); }

constexpr int64_t WordsOf(int64_t bits) { return (bits + 63) / 64; }

// A set of neurons that lists its members in order without looking at all words: a bit of
// `summary_` says whether a word has members.
class NeuronSet {
 public:
  explicit NeuronSet(int64_t units) : words_(WordsOf(units), 0), summary_(WordsOf(words_.size())) {}

  bool Has(int32_t id) const { return words_[id >> 6] & BitOf(id); }

  void Add(int32_t id) {
    words_[id >> 6] |= BitOf(id);
    summary_[id >> 12] |= BitOf(id >> 6);
  }

  // Appends the members to `ids`, ascending, and forgets them; the result is their number.
  int64_t Drain(std::vector<int32_t>* ids) {
    const size_t before = ids->size();
    for (size_t s = 0; s < summary_.size(); ++s) {
      for (uint64_t marks = summary_[s]; marks != 0; marks &= marks - 1) {
        const size_t word = s * 64 + __builtin_ctzll(marks);
        for (uint64_t bits = words_[word]; bits != 0; bits &= bits - 1) {
          ids->push_back(static_cast<int32_t>(word * 64 + __builtin_ctzll(bits)));
        }
        words_[word] = 0;
      }
      summary_[s] = 0;
    }
    return ids->size() - before;
  }

 private:
  std::vector<uint64_t> words_;
  std::vector<uint64_t> summary_;
};

// Neurons of a bucket that are treated side by side.
constexpr int64_t kStretch = 64;

// A part of a bucket; `wrapped` of its neurons lie at the bucket's beginning.
struct Window {
  const int32_t* bucket;
  int64_t start;
  int64_t until_end;
  int64_t wrapped;

  int64_t size() const { return until_end + wrapped; }
  // Calls `use(ids, count)` for the neurons in stretches of kStretch, the last one shorter.
  template <typename Use>
  void ForStretches(const Use& use) const {
    int32_t joined[kStretch];
    for (int64_t j = 0; j < size(); j += kStretch) {
      const int64_t count = std::min(kStretch, size() - j);
      const int64_t before_end = std::clamp<int64_t>(until_end - j, 0, count);
      if (before_end == count) {
        use(bucket + start + j, count);
        continue;
      }
      std::copy_n(bucket + start + j, before_end, joined);
      std::copy_n(bucket + std::max<int64_t>(0, j - until_end), count - before_end,
                  joined + before_end);
      use(joined, count);
    }
  }

  void Prefetch() const {
    PrefetchRange(bucket + start, until_end);
    PrefetchRange(bucket, wrapped);
  }
};

// Up to `bucket_size` neurons of a bucket, from a place on that depends on `key`. Borders that do
// not lie in the table leave `sound` false.
Window WindowOf(const LshQuery& query, int64_t table, int32_t code, int64_t key, bool* sound) {
  const int32_t* ptr = query.bucket_ptr + table * (query.buckets + 1) + code;
  const int64_t length = int64_t{ptr[1]} - ptr[0];
  if (length == 0) return {};
  if (length < 0 || ptr[0] < 0 || ptr[1] > query.units) {
    *sound = false;
    return {};
  }
  const int64_t taken = std::min(length, query.bucket_size);
  const int64_t start = query.from_start ? 0 : Below(Mix(query.seed, key, table), length);
  const int64_t until_end = std::min(taken, length - start);
  return {query.neuron_ids + table * query.units + ptr[0], start, until_end, taken - until_end};
}

// Neurons in the order in which they came to 1 collision, to 2, and so on: choosing those of the
// most collisions then looks at few more than it chooses.
class CollisionLevels {
 public:
  explicit CollisionLevels(int64_t most_levels)
      : begin_(most_levels + 2, 0), size_(most_levels + 1, 0) {}

  // Makes room for so many collisions in all. What was added before is lost.
  void Reserve(int64_t collisions) {
    if (collisions <= collisions_) return;
    collisions_ = std::max(collisions, 2 * collisions_);
    for (size_t level = 1; level + 1 < begin_.size(); ++level) {
      begin_[level + 1] = begin_[level] + collisions_ / level;
    }
    ids_.resize(begin_.back());
  }
  // Adds neurons that came to a level each; level 0 is passed over. Most are new, so those are
  // listed without a branch.
  template <typename Level>
  void Add(const Level* level, const int32_t* ids, int64_t count) {
    int32_t* const first = ids_.data() + begin_[1];
    int64_t size = size_[1], others = 0;
    uint8_t other[kStretch];
    for (int64_t j = 0; j < count; ++j) {
      first[size] = ids[j];
      size += level[j] == 1;
      other[others] = static_cast<uint8_t>(j);
      others += level[j] > 1;
    }
    size_[1] = size;
    for (int64_t o = 0; o < others; ++o) {
      const int64_t l = level[other[o]];
      ids_[begin_[l] + size_[l]++] = ids[other[o]];
    }
  }
  void Clear() { std::fill(size_.begin(), size_.end(), 0); }
  IdList Reached(int64_t level) const { return {ids_.data() + begin_[level], size_[level]}; }

 private:
  int64_t collisions_ = 0;
  std::vector<int64_t> begin_;  // collisions / level places for each level
  std::vector<int64_t> size_;
  std::vector<int32_t> ids_;
};

// The choice of one row at a time, with counters that are clean between rows. Count is wide enough
// for the number of tables and one more value.
template <typename Count>
class RowSelector {
 public:
  RowSelector(int64_t units, int64_t tables)
      : collisions_(units, 0),
        chosen_(units),
        windows_(tables),
        next_windows_(tables),
        levels_(tables) {}

  bool Fits(const LshQuery& query) const {
    return query.units == static_cast<int64_t>(collisions_.size()) &&
           query.tables == static_cast<int64_t>(windows_.size());
  }

  // To be called before rows of a query are selected, and after.
  void Open(const LshQuery& query) {
    query_ = query;
    sound_ = true;
    for (const int32_t id : query.excluded) collisions_[id] = kExcluded;
  }
  void Close() {
    for (const int32_t id : query_.excluded) collisions_[id] = 0;
  }

  // To be called once before rows [row, last) are selected one after the other.
  void Begin(int64_t row, int64_t last) {
    last_ = last;
    for (int64_t table = 0; table < query_.tables; ++table) PrefetchBorders(row, table);
    FindWindows(row);
    for (int64_t table = 0; table < kAhead; ++table) PrefetchWindow(query_.tables + table);
  }

  // Appends the row's own neurons to `ids`, ascending; the result is their number.
  int64_t Select(int64_t row, const int32_t* label_begin, const int32_t* label_end,
                 std::vector<int32_t>* ids) {
    const int64_t labels = label_end - label_begin;
    for (const int32_t* label = label_begin; label != label_end; ++label) chosen_.Add(*label);
    FindWindows(row + 1);
    if (query_.hashed > labels && query_.tables > 0 && query_.min_collisions <= query_.tables) {
      CountCollisions();
      if (query_.min_collisions == 0) {
        ChooseMostFrequent(query_.hashed - labels, label_begin, label_end);
      } else {
        ChooseInOrder(query_.hashed - labels, levels_.Reached(query_.min_collisions));
      }
      for (const int32_t id : levels_.Reached(1)) collisions_[id] = 0;
      levels_.Clear();
    }
    return chosen_.Drain(ids);
  }

  // Whether the tables seen so far held ids of neurons, each once.
  bool sound() const { return sound_; }

 private:
  void CountCollisions() {
    int64_t collisions = 0;
    for (const Window& window : windows_) collisions += window.size();
    levels_.Reserve(collisions);
    for (int64_t table = 0; table < query_.tables; ++table) {
      PrefetchWindow(table + kAhead);
      windows_[table].ForStretches(
          [&](const int32_t* ids, int64_t count) { CountStretch(ids, count); });
      if (query_.min_collisions > 0 &&
          levels_.Reached(query_.min_collisions).count >= query_.hashed)
        return;
    }
  }

  // Moves on by a row and finds the windows of the one after it.
  void FindWindows(int64_t next) {
    std::swap(windows_, next_windows_);
    for (int64_t table = 0; table < query_.tables; ++table) {
      PrefetchBorders(next + 1, table);
      next_windows_[table] = next < last_ ? RowWindow(next, table) : Window{};
    }
    if (query_.min_collisions == 0) return;
    for (int64_t table = 0; table < query_.tables; ++table) {
      const uint64_t random = Mix(~query_.seed, next, table);
      std::swap(next_windows_[table], next_windows_[table + Below(random, query_.tables - table)]);
    }
  }

  Window RowWindow(int64_t row, int64_t table) {
    const int32_t code = Code(row, table);
    return WindowOf(query_, table, code, query_.by_code ? code : row, &sound_);
  }

  // Buckets lie anywhere in tables far larger than the cache: each is asked for so many tables
  // before it is read. More at a time would wait for each other.
  static constexpr int64_t kAhead = 12;

  // `table` counts on into the next row.
  void PrefetchWindow(int64_t table) const {
    const bool next = table >= query_.tables;
    if (next) table -= query_.tables;
    if (table >= query_.tables) return;
    (next ? next_windows_ : windows_)[table].Prefetch();
  }

  int32_t Code(int64_t row, int64_t table) const {
    return query_.codes[row * query_.tables + table];
  }

  void PrefetchBorders(int64_t row, int64_t table) const {
    if (row >= last_) return;
    Prefetch(query_.bucket_ptr + table * (query_.buckets + 1) + Code(row, table));
  }

  // What the neurons of a stretch reached is listed in a second pass, so that no counter waits for
  // the length of a list.
  void CountStretch(const int32_t* ids, int64_t count) {
    Count level[kStretch];
    uint32_t outside = 0, unsound = 0;
    for (int64_t j = 0; j < count; ++j) {
      outside |= static_cast<uint32_t>(ids[j]) >= static_cast<uint32_t>(query_.units);
    }
    if (outside) count = 0;
    Count* const collisions = collisions_.data();
    const Count most = static_cast<Count>(query_.tables);
    for (int64_t j = 0; j < count; ++j) {
      const Count before = collisions[ids[j]];
      const bool counts = before < most;
      unsound |= !counts & (before != kExcluded);
      level[j] = counts ? before + 1 : 0;
      collisions[ids[j]] = before + counts;
    }
    levels_.Add(level, ids, count);
    if (outside | unsound) sound_ = false;
  }

  // Chooses up to `room` neurons besides the labels in falling order of collisions, equals in the
  // order in which they came to so many.
  void ChooseMostFrequent(int64_t room, const int32_t* label_begin, const int32_t* label_end) {
    // How many that are not labels have at least `level` collisions.
    auto count = [&](int64_t level) {
      return levels_.Reached(level).count -
             std::count_if(label_begin, label_end, [&](int32_t label) {
               return collisions_[label] >= level && collisions_[label] != kExcluded;
             });
    };
    int64_t level = query_.tables + 1;
    while (level > 1 && count(level - 1) <= room) --level;
    if (level <= query_.tables) {
      for (const int32_t id : levels_.Reached(level)) chosen_.Add(id);
      room -= count(level);
    }
    if (level == 1) return;
    ChooseInOrder(room, levels_.Reached(level - 1));
  }

  // Chooses the first `room` that are not chosen yet.
  void ChooseInOrder(int64_t room, const IdList& ids) {
    for (const int32_t* id = ids.begin(); room > 0 && id != ids.end(); ++id) {
      if (chosen_.Has(*id)) continue;
      chosen_.Add(*id);
      --room;
    }
  }

  static constexpr Count kExcluded = std::numeric_limits<Count>::max();

  LshQuery query_{};
  std::vector<Count> collisions_;
  NeuronSet chosen_;
  std::vector<Window> windows_;       // of the row that is being selected
  std::vector<Window> next_windows_;  // of the row after it
  int64_t last_ = 0;
  CollisionLevels levels_;
  bool sound_ = true;
};

// Selectors that nobody uses now.
template <typename Count>
class Idle {
 public:
  std::unique_ptr<RowSelector<Count>> Take(const LshQuery& query) {
    std::unique_ptr<RowSelector<Count>> result;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        result = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (!result || !result->Fits(query)) {
      result = std::make_unique<RowSelector<Count>>(query.units, query.tables);
    }
    return result;
  }
  void Give(std::unique_ptr<RowSelector<Count>> selector) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(selector));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<RowSelector<Count>>> idle_;
};

// Joins rows that were made apart; `lengths` holds 0 and then the rows' lengths.
Csr Join(const std::vector<std::vector<int32_t>>& chunks, std::vector<int64_t> lengths) {
  Csr result;
  result.splits = std::move(lengths);
  for (size_t row = 1; row < result.splits.size(); ++row) {
    result.splits[row] += result.splits[row - 1];
  }
  result.ids.reserve(result.splits.back());
  for (const auto& chunk : chunks) result.ids.insert(result.ids.end(), chunk.begin(), chunk.end());
  return result;
}

template <typename Count>
Csr SelectRows(const LshQuery& query, const CsrView& labels, Idle<Count>* idle,
               const ParallelFor& parallel, bool* sound) {
  constexpr int64_t kRowsPerChunk = 16;
  const int64_t count = (labels.rows + kRowsPerChunk - 1) / kRowsPerChunk;
  std::vector<std::vector<int32_t>> chunks(count);
  std::vector<int64_t> lengths(labels.rows + 1, 0);
  std::atomic<bool> broken{false};
  const int64_t cost = kRowsPerChunk * (query.tables * std::min<int64_t>(query.bucket_size, 1000) +
                                        query.units / 64);
  parallel(count, cost, [&](int64_t begin, int64_t end) {
    std::unique_ptr<RowSelector<Count>> selector = idle->Take(query);
    selector->Open(query);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t last = std::min(labels.rows, (chunk + 1) * kRowsPerChunk);
      selector->Begin(chunk * kRowsPerChunk, last);
      for (int64_t row = chunk * kRowsPerChunk; row < last; ++row) {
        lengths[row + 1] =
            selector->Select(row, labels.begin(row), labels.end(row), &chunks[chunk]);
      }
    }
    if (!selector->sound()) broken = true;
    selector->Close();
    idle->Give(std::move(selector));
  });
  *sound = !broken;
  return Join(chunks, std::move(lengths));
}

}  // namespace

struct LshScratch::Selectors {
  Idle<uint8_t> few_tables;
  Idle<uint16_t> many_tables;
};

LshScratch::LshScratch() : selectors_(new Selectors) {}
LshScratch::~LshScratch() = default;

Csr SelectFromTables(const LshQuery& query, const CsrView& labels, const LshScratch& scratch,
                     const ParallelFor& parallel, bool* sound) {
  LshScratch::Selectors* idle = scratch.selectors_.get();
  return query.tables < std::numeric_limits<uint8_t>::max()
             ? SelectRows(query, labels, &idle->few_tables, parallel, sound)
             : SelectRows(query, labels, &idle->many_tables, parallel, sound);
}

}  // namespace dslide
