#include "custom_ops/core/active_set.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "custom_ops/core/random.h"

namespace dslide {
namespace {

std::string CheckSplits(const int64_t* splits, int64_t rows, int64_t size) {
  if (splits[0] != 0 || splits[rows] != size) {
    return "row_splits must run from 0 to the number of ids, " + std::to_string(size) +
           "; received " + std::to_string(splits[0]) + " to " + std::to_string(splits[rows]);
  }
  for (int64_t row = 0; row < rows; ++row) {
    if (splits[row + 1] < splits[row]) {
      return "row_splits must not fall; received " + std::to_string(splits[row]) + " and then " +
             std::to_string(splits[row + 1]) + " at row " + std::to_string(row);
    }
  }
  return "";
}

}  // namespace

std::string CanonicalLabels(const int64_t* splits, int64_t rows, const int64_t* values,
                            int64_t size, int64_t units, Csr* labels) {
  std::string error = CheckSplits(splits, rows, size);
  if (!error.empty()) return error;
  labels->splits.assign(rows + 1, 0);
  labels->ids.clear();
  labels->ids.reserve(size);
  for (int64_t row = 0; row < rows; ++row) {
    const size_t begin = labels->ids.size();
    for (int64_t j = splits[row]; j < splits[row + 1]; ++j) {
      if (values[j] == -1) continue;
      if (values[j] < 0 || values[j] >= units) {
        return "row " + std::to_string(row) + " has label " + std::to_string(values[j]) +
               ", which is outside [0, " + std::to_string(units) +
               "); labels number the layer's units from 0, and -1 pads";
      }
      labels->ids.push_back(static_cast<int32_t>(values[j]));
    }
    const auto first = labels->ids.begin() + begin;
    std::sort(first, labels->ids.end());
    labels->ids.erase(std::unique(first, labels->ids.end()), labels->ids.end());
    labels->splits[row + 1] = labels->ids.size();
  }
  return "";
}

namespace {

// One branch-free pass, so that checking costs little beside using; the caller looks closer when it
// fails.
bool IdsAreSound(const int64_t* splits, int64_t rows, const int32_t* ids, int64_t size,
                 int64_t units, bool strictly) {
  const uint32_t limit = static_cast<uint32_t>(units);
  uint32_t bad = 0;
  for (int64_t j = 0; j < size; ++j) bad |= static_cast<uint32_t>(ids[j]) >= limit;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t first = splits[row] + 1, end = splits[row + 1];
    if (strictly) {
      for (int64_t j = first; j < end; ++j) bad |= ids[j] <= ids[j - 1];
    } else {
      for (int64_t j = first; j < end; ++j) bad |= ids[j] < ids[j - 1];
    }
  }
  return bad == 0;
}

}  // namespace

std::string CheckCsr(const int64_t* splits, int64_t rows, const int32_t* ids, int64_t size,
                     int64_t units, bool strictly) {
  std::string error = CheckSplits(splits, rows, size);
  if (!error.empty()) return error;
  if (IdsAreSound(splits, rows, ids, size, units, strictly)) return "";
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t j = splits[row]; j < splits[row + 1]; ++j) {
      if (ids[j] < 0 || ids[j] >= units) {
        return "row " + std::to_string(row) + " has id " + std::to_string(ids[j]) +
               ", which is outside [0, " + std::to_string(units) + ")";
      }
      if (j > splits[row] && (strictly ? ids[j] <= ids[j - 1] : ids[j] < ids[j - 1])) {
        return "ids must ascend in each row; row " + std::to_string(row) + " has " +
               std::to_string(ids[j - 1]) + " and then " + std::to_string(ids[j]);
      }
    }
  }
  return "";
}

Membership::Membership(const IdList& list)
    : list_(list), limit_(list.count > 0 ? int64_t{list.ids[list.count - 1]} + 1 : 0) {
  bits_.assign((limit_ + 63) / 64, 0);
  for (const int32_t id : list_) bits_[id >> 6] |= uint64_t{1} << (id & 63);
}

std::string CheckNeuronView(const NeuronView& view, int64_t rows, int64_t entries, int64_t units) {
  if (view.splits[0] != 0 || view.splits[view.count] != entries) {
    return "the neurons' splits must run from 0 to the number of entries, " +
           std::to_string(entries);
  }
  uint32_t bad = 0;
  for (int64_t u = 0; u < view.count; ++u) {
    bad |= view.splits[u + 1] < view.splits[u];
    bad |= static_cast<uint32_t>(view.neurons[u]) >= static_cast<uint32_t>(units);
    bad |= u > 0 && view.neurons[u] <= view.neurons[u - 1];
  }
  const uint32_t row_limit = static_cast<uint32_t>(rows);
  const uint32_t index_limit = static_cast<uint32_t>(entries);
  for (int64_t e = 0; e < entries; ++e) {
    bad |= static_cast<uint32_t>(view.entry_row[e]) >= row_limit;
    bad |= static_cast<uint32_t>(view.entry_index[e]) >= index_limit;
  }
  const IdList& shared = view.shared_places;
  for (int64_t s = 0; s < shared.count; ++s) {
    bad |= static_cast<uint64_t>(int64_t{shared.ids[s]}) >= static_cast<uint64_t>(view.count);
    bad |= s > 0 && shared.ids[s] <= shared.ids[s - 1];
  }
  if (bad == 0) return "";
  return "the active sets seen by neuron do not belong to " + std::to_string(rows) +
         " samples and " + std::to_string(units) + " units; make them with the Transpose op";
}

bool EntriesAreDistinct(const int32_t* entry_index, int64_t entries) {
  std::vector<uint64_t> seen((entries + 63) / 64, 0);
  bool distinct = true;
  for (int64_t e = 0; e < entries; ++e) {
    uint64_t& word = seen[entry_index[e] >> 6];
    const uint64_t bit = uint64_t{1} << (entry_index[e] & 63);
    distinct &= (word & bit) == 0;
    word |= bit;
  }
  return distinct;
}

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

// Neurons in the order in which they came to 1 vote, to 2 votes, and so on: choosing the most voted
// then looks at few more than it chooses.
class VoteLevels {
 public:
  explicit VoteLevels(int64_t most_levels)
      : begin_(most_levels + 2, 0), size_(most_levels + 1, 0) {}

  // Makes room for so many votes in all. What was added before is lost.
  void Reserve(int64_t votes) {
    if (votes <= votes_) return;
    votes_ = std::max(votes, 2 * votes_);
    for (size_t level = 1; level + 1 < begin_.size(); ++level) {
      begin_[level + 1] = begin_[level] + votes_ / level;
    }
    ids_.resize(begin_.back());
  }
  void Add(int64_t level, int32_t id) { ids_[begin_[level] + size_[level]++] = id; }
  void Clear() { std::fill(size_.begin(), size_.end(), 0); }
  IdList Reached(int64_t level) const { return {ids_.data() + begin_[level], size_[level]}; }

 private:
  int64_t votes_ = 0;
  std::vector<int64_t> begin_;  // votes / level places for each level
  std::vector<int64_t> size_;
  std::vector<int32_t> ids_;
};

// The choice of one row at a time, with counters that are clean between rows. Vote is wide enough
// for the number of tables and one more value.
template <typename Vote>
class RowSelector {
 public:
  explicit RowSelector(const LshQuery& query)
      : query_(query),
        votes_(query.units, 0),
        chosen_(query.units),
        windows_(query.tables),
        levels_(query.tables) {
    for (const int32_t id : query.excluded) votes_[id] = kExcluded;
  }

  // Appends the row's own neurons to `ids`, ascending; the result is their number.
  int64_t Select(int64_t row, const int32_t* label_begin, const int32_t* label_end,
                 std::vector<int32_t>* ids) {
    const int64_t labels = label_end - label_begin;
    for (const int32_t* label = label_begin; label != label_end; ++label) chosen_.Add(*label);
    if (query_.hashed > labels && query_.tables > 0) {
      CountVotes(row);
      ChooseMostVoted(query_.hashed - labels, label_begin, label_end);
      for (const int32_t id : levels_.Reached(1)) votes_[id] = 0;
      levels_.Clear();
    }
    return chosen_.Drain(ids);
  }

  // Whether the tables seen so far held ids of neurons, each once.
  bool sound() const { return sound_; }

 private:
  // A stretch of a bucket; `wrapped` of them lie at the bucket's beginning.
  struct Window {
    const int32_t* bucket;
    int64_t start;
    int64_t until_end;
    int64_t wrapped;
  };

  Window WindowOf(int64_t row, int64_t table) const {
    const int32_t* ptr = query_.bucket_ptr + table * (query_.buckets + 1) +
                         query_.codes[row * query_.tables + table];
    const int64_t length = ptr[1] - ptr[0];
    if (length == 0) return {nullptr, 0, 0, 0};
    const int64_t taken = std::min(length, query_.bucket_size);
    const int64_t start = Below(Mix(query_.seed, row, table), length);
    const int64_t until_end = std::min(taken, length - start);
    return {query_.neuron_ids + table * query_.units + ptr[0], start, until_end, taken - until_end};
  }

  // Buckets lie anywhere in tables far larger than the cache: all are asked for before the first is
  // read.
  void CountVotes(int64_t row) {
    for (int64_t table = 0; table < query_.tables; ++table) {
      __builtin_prefetch(query_.bucket_ptr + table * (query_.buckets + 1) +
                         query_.codes[row * query_.tables + table]);
    }
    int64_t votes = 0;
    for (int64_t table = 0; table < query_.tables; ++table) {
      windows_[table] = WindowOf(row, table);
      votes += windows_[table].until_end + windows_[table].wrapped;
      const int32_t* first = windows_[table].bucket + windows_[table].start;
      for (int64_t j = 0; j < windows_[table].until_end; j += 16) __builtin_prefetch(first + j);
    }
    levels_.Reserve(votes);
    for (const Window& window : windows_) {
      const int32_t* first = window.bucket + window.start;
      for (int64_t j = 0; j < window.until_end; ++j) CountVote(first[j]);
      for (int64_t j = 0; j < window.wrapped; ++j) CountVote(window.bucket[j]);
    }
  }

  void CountVote(int32_t id) {
    if (static_cast<uint32_t>(id) >= static_cast<uint32_t>(query_.units)) {
      sound_ = false;
    } else if (votes_[id] >= query_.tables) {
      sound_ &= votes_[id] == kExcluded;
    } else {
      levels_.Add(++votes_[id], id);
    }
  }

  // Chooses up to `room` neurons besides the labels in falling order of votes, equals in the order
  // in which they came to so many.
  void ChooseMostVoted(int64_t room, const int32_t* label_begin, const int32_t* label_end) {
    // How many that are not labels have at least `level` votes.
    auto count = [&](int64_t level) {
      return levels_.Reached(level).count -
             std::count_if(label_begin, label_end, [&](int32_t label) {
               return votes_[label] >= level && votes_[label] != kExcluded;
             });
    };
    int64_t level = query_.tables + 1;
    while (level > 1 && count(level - 1) <= room) --level;
    if (level <= query_.tables) {
      for (const int32_t id : levels_.Reached(level)) chosen_.Add(id);
      room -= count(level);
    }
    if (level == 1) return;
    const IdList ties = levels_.Reached(level - 1);
    for (const int32_t* id = ties.begin(); room > 0 && id != ties.end(); ++id) {
      if (chosen_.Has(*id)) continue;
      chosen_.Add(*id);
      --room;
    }
  }

  static constexpr Vote kExcluded = std::numeric_limits<Vote>::max();

  const LshQuery& query_;
  std::vector<Vote> votes_;
  NeuronSet chosen_;
  std::vector<Window> windows_;
  VoteLevels levels_;
  bool sound_ = true;
};

// Joins rows that were made apart; `lengths` holds 0 and then the rows' lengths.
Csr Join(const std::vector<std::vector<int32_t>>& parts, std::vector<int64_t> lengths) {
  Csr result;
  result.splits = std::move(lengths);
  for (size_t row = 1; row < result.splits.size(); ++row) {
    result.splits[row] += result.splits[row - 1];
  }
  result.ids.reserve(result.splits.back());
  for (const auto& part : parts) result.ids.insert(result.ids.end(), part.begin(), part.end());
  return result;
}

template <typename Vote>
Csr SelectRows(const LshQuery& query, const CsrView& labels, const ParallelFor& parallel,
               bool* sound) {
  constexpr int64_t kRowsPerPart = 16;
  const int64_t count = (labels.rows + kRowsPerPart - 1) / kRowsPerPart;
  std::vector<std::vector<int32_t>> parts(count);
  std::vector<int64_t> lengths(labels.rows + 1, 0);
  std::atomic<bool> broken{false};
  const int64_t cost =
      kRowsPerPart * (query.tables * std::min<int64_t>(query.bucket_size, 1000) + query.units / 64);
  parallel(count, cost, [&](int64_t begin, int64_t end) {
    RowSelector<Vote> selector(query);
    for (int64_t part = begin; part < end; ++part) {
      const int64_t last = std::min(labels.rows, (part + 1) * kRowsPerPart);
      for (int64_t row = part * kRowsPerPart; row < last; ++row) {
        lengths[row + 1] = selector.Select(row, labels.begin(row), labels.end(row), &parts[part]);
      }
    }
    if (!selector.sound()) broken = true;
  });
  *sound = !broken;
  return Join(parts, std::move(lengths));
}

}  // namespace

Csr SelectFromTables(const LshQuery& query, const CsrView& labels, const ParallelFor& parallel,
                     bool* sound) {
  return query.tables < std::numeric_limits<uint8_t>::max()
             ? SelectRows<uint8_t>(query, labels, parallel, sound)
             : SelectRows<uint16_t>(query, labels, parallel, sound);
}

SharedNeurons SampleNeurons(int64_t units, int64_t count, const IdList& fixed,
                            Distribution distribution, uint64_t seed) {
  count = std::min(count, units);
  std::vector<uint64_t> taken((units + 63) / 64, 0);
  SharedNeurons result;
  std::vector<int32_t>& ids = result.ids;
  ids.reserve(std::max(count, fixed.count));
  const double log_range = std::log1p(static_cast<double>(units));
  auto take = [&](int64_t id) {
    uint64_t& word = taken[id >> 6];
    const uint64_t bit = uint64_t{1} << (id & 63);
    if (word & bit) return;
    word |= bit;
    ids.push_back(static_cast<int32_t>(id));
  };
  auto draw = [&](uint64_t random) -> int64_t {
    if (distribution == Distribution::kUniform) return Below(random, units);
    return std::min<int64_t>(units - 1, std::expm1(Unit(random) * log_range));
  };
  for (const int32_t id : fixed) take(id);
  // Past this many draws nearly all are taken; the rest comes in order from a random place.
  const int64_t attempts = 64 * count;
  for (int64_t a = 0; a < attempts && static_cast<int64_t>(ids.size()) < count; ++a) {
    take(draw(Mix(seed, a)));
  }
  const int64_t start = Below(Mix(seed), units);
  for (int64_t j = 0; j < units && static_cast<int64_t>(ids.size()) < count; ++j) {
    take((start + j) % units);
  }
  std::sort(ids.begin(), ids.end());
  result.drawn.assign(ids.size(), 1.0f);
  auto place = ids.begin();
  for (const int32_t id : fixed) {
    place = std::lower_bound(place, ids.end(), id);
    result.drawn[place - ids.begin()] = 0.0f;
  }
  return result;
}

std::vector<float> LogShares(const CsrView& own, const IdList& shared, const float* drawn,
                             int64_t units, const ParallelFor& parallel) {
  const Membership membership(shared);
  const int64_t all_drawn = std::count(drawn, drawn + shared.count, 1.0f);
  std::vector<float> result(own.rows, 0.0f);
  parallel(own.rows, 20 + own.size() / std::max<int64_t>(1, own.rows),
           [&](int64_t begin, int64_t end) {
             for (int64_t row = begin; row < end; ++row) {
               int64_t left_out = units - own.length(row) - (shared.count - all_drawn);
               int64_t standing = all_drawn;
               for (const int32_t* id = own.begin(row); id != own.end(row); ++id) {
                 if (!membership.Has(*id)) continue;
                 const bool by_chance = drawn[membership.PlaceOf(*id)] == 1.0f;
                 standing -= by_chance;
                 left_out += !by_chance;
               }
               if (standing == 0) continue;
               result[row] = static_cast<float>(std::log(static_cast<double>(left_out) / standing));
             }
           });
  return result;
}

namespace {

// Slabs small enough for their counters to stay in the first-level cache, yet few enough to find
// their borders cheaply in every row.
int64_t SlabUnits(int64_t units) {
  constexpr int64_t kCounters = 32768, kMostSlabs = 256;
  return std::max(kCounters, (units + kMostSlabs - 1) / kMostSlabs);
}

}  // namespace

int64_t Transpose::SlabSize(int64_t slab) const {
  return std::min(units_ - SlabBegin(slab), slab_units_);
}

Transpose::Transpose(const CsrView& active, const IdList& shared, int64_t units,
                     const ParallelFor& parallel)
    : active_(active),
      shared_(shared),
      units_(units),
      slab_units_(SlabUnits(units)),
      slabs_((units + slab_units_ - 1) / slab_units_),
      places_((slabs_ + 1) * active.rows),
      slab_entries_(slabs_ + 1, 0),
      slab_neurons_(slabs_ + 1, 0) {
  parallel(active.rows, slabs_ * 20, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t* first = active_.begin(row);
      for (int64_t slab = 0; slab <= slabs_; ++slab) {
        if (slab == slabs_) first = active_.end(row);
        first = std::lower_bound(first, active_.end(row), SlabBegin(slab),
                                 [](int32_t id, int64_t border) { return id < border; });
        places_[slab * active_.rows + row] = static_cast<int32_t>(first - active_.ids);
      }
    }
  });
  parallel(slabs_, 1 + active.size() / std::max<int64_t>(1, slabs_),
           [&](int64_t begin, int64_t end) {
             std::vector<uint8_t> seen(slab_units_);
             for (int64_t slab = begin; slab < end; ++slab) {
               std::fill(seen.begin(), seen.end(), 0);
               int64_t entries = 0;
               for (int64_t row = 0; row < active_.rows; ++row) {
                 const int32_t last = FirstPlace(slab + 1, row);
                 entries += last - FirstPlace(slab, row);
                 for (int32_t e = FirstPlace(slab, row); e < last; ++e) {
                   seen[active_.ids[e] - SlabBegin(slab)] = 1;
                 }
               }
               for (const int32_t* id = FirstShared(slab); id != FirstShared(slab + 1); ++id) {
                 seen[*id - SlabBegin(slab)] = 1;
               }
               slab_entries_[slab + 1] = entries;
               slab_neurons_[slab + 1] = std::count(seen.begin(), seen.end(), 1);
             }
           });
  for (int64_t slab = 0; slab < slabs_; ++slab) {
    slab_entries_[slab + 1] += slab_entries_[slab];
    slab_neurons_[slab + 1] += slab_neurons_[slab];
  }
  count_ = slab_neurons_[slabs_];
}

void Transpose::WriteSlab(int64_t slab, int32_t* neurons, int64_t* splits, int32_t* entry_row,
                          int32_t* entry_index, int32_t* shared_places,
                          std::vector<int32_t>* counters) const {
  std::vector<int32_t>& next = *counters;  // entries of a neuron, -1 if it is not there
  std::fill(next.begin(), next.end(), -1);
  const int32_t* shared = FirstShared(slab);
  const int32_t* shared_end = FirstShared(slab + 1);
  for (const int32_t* id = shared; id != shared_end; ++id) next[*id - SlabBegin(slab)] = 0;
  for (int64_t row = 0; row < active_.rows; ++row) {
    for (int32_t e = FirstPlace(slab, row); e < FirstPlace(slab + 1, row); ++e) {
      int32_t& count = next[active_.ids[e] - SlabBegin(slab)];
      count = std::max(count, 0) + 1;
    }
  }
  int64_t place = slab_entries_[slab], u = slab_neurons_[slab];
  for (int64_t j = 0; j < SlabSize(slab); ++j) {
    if (next[j] < 0) continue;
    neurons[u] = static_cast<int32_t>(SlabBegin(slab) + j);
    if (shared != shared_end && *shared == neurons[u]) {
      shared_places[shared++ - shared_.ids] = static_cast<int32_t>(u);
    }
    splits[u++] = place;
    const int32_t length = next[j];
    next[j] = static_cast<int32_t>(place);
    place += length;
  }
  for (int64_t row = 0; row < active_.rows; ++row) {
    for (int32_t e = FirstPlace(slab, row); e < FirstPlace(slab + 1, row); ++e) {
      const int32_t to = next[active_.ids[e] - SlabBegin(slab)]++;
      entry_row[to] = static_cast<int32_t>(row);
      entry_index[to] = e;
    }
  }
}

void Transpose::Write(int32_t* neurons, int64_t* splits, int32_t* entry_row, int32_t* entry_index,
                      int32_t* shared_places, const ParallelFor& parallel) const {
  splits[count_] = slab_entries_[slabs_];
  parallel(slabs_, 1 + 3 * active_.size() / std::max<int64_t>(1, slabs_),
           [&](int64_t begin, int64_t end) {
             std::vector<int32_t> next(slab_units_);
             for (int64_t slab = begin; slab < end; ++slab) {
               WriteSlab(slab, neurons, splits, entry_row, entry_index, shared_places, &next);
             }
           });
}

}  // namespace dslide
