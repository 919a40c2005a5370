// maya.simulate._core: the engine for Python. All checks of ranges are made by program.py and network.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "engine.h"

namespace nb = nanobind;

namespace {

using namespace maya::simulate;

// Members of a dict by name, nothing converted or copied: the spans last as long as the dict does.
class Fields {
 public:
  explicit Fields(const nb::dict& fields) : fields_(fields) {}

  template <class T>
  std::span<T> array(const char* name) const {
    using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
    const auto array = nb::cast<Array>(fields_[name], /*convert=*/false);
    return {array.data(), array.size()};
  }
  template <class T>
  void read(const char* name, std::span<T>& into) const {
    into = array<T>(name);
  }
  template <class T>
  void read(const char* name, T& into) const {
    into = nb::cast<T>(fields_[name]);
  }

 private:
  const nb::dict& fields_;
};

Program program_of(const nb::dict& fields) {
  const Fields from(fields);
  Program program;
  from.read("action", program.action);
  from.read("flags", program.flags);
  from.read("stream", program.stream);
  from.read("link", program.link);
  from.read("count", program.count);
  from.read("host", program.host);
  from.read("duration", program.duration);
  from.read("demand", program.demand);
  from.read("rank_begin", program.rank_begin);
  from.read("stream_begin", program.stream_begin);
  from.read("stream_flags", program.stream_flags);
  from.read("transfers", program.transfers);
  from.read("party_begin", program.party_begin);
  from.read("party_stream", program.party_stream);
  from.read("transfer_duration", program.transfer_duration);
  from.read("lane_of", program.lane_of);
  from.read("message", program.message);
  from.read("lanes", program.lanes);
  from.read("lane_bytes", program.lane_bytes);
  from.read("flow_of", program.flow_of);
  from.read("flow_peak", program.flow_peak);
  from.read("flow_begin", program.flow_begin);
  from.read("flow_link", program.flow_link);
  from.read("flow_use", program.flow_use);
  from.read("flow_share", program.flow_share);
  from.read("draws", program.draws);
  from.read("links", program.links);
  from.read("events", program.events);
  from.read("iterations", program.iterations);
  from.read("queue_depth", program.queue_depth);
  from.read("launch_call", program.launch_call);
  from.read("launch_latency", program.launch_latency);
  from.read("completion_latency", program.completion_latency);
  from.read("collective_occupies", program.collective_occupies);
  from.read("transfer_occupies", program.transfer_occupies);
  return program;
}

Results results_of(const nb::dict& fields) {
  const Fields from(fields);
  Results results;
  from.read("issued", results.issued);
  from.read("start", results.start);
  from.read("end", results.end);
  from.read("iteration_end", results.iteration_end);
  from.read("activity", results.activity);
  return results;
}

using PathRow = std::tuple<Nanoseconds, Nanoseconds, std::uint32_t, std::uint8_t>;
using StuckRow = std::tuple<std::uint32_t, std::uint32_t, std::int64_t>;

}  // namespace

NB_MODULE(_core, m) {
  m.attr("ACTIVITIES") = static_cast<int>(kActivities);
  m.attr("ONE") = kOne;
  m.attr("DEMAND_UNIT") = kDemandUnit;
  m.def(
      "run",
      [](const nb::dict& program_fields, const nb::dict& result_fields) {
        const Program program = program_of(program_fields);
        const Results results = results_of(result_fields);
        std::vector<StuckRow> stuck;
        std::vector<PathRow> path;
        std::uint64_t processed = 0;
        {
          nb::gil_scoped_release unlocked;
          Engine engine(program, results);
          for (const Stuck& one : engine.run()) stuck.emplace_back(one.rank, one.call, one.stream);
          processed = engine.events();
          for (const PathStep& step : engine.critical_path())
            path.emplace_back(step.begin, step.end, step.call, static_cast<std::uint8_t>(step.stretch));
        }
        return std::tuple(processed, stuck, path);
      },
      nb::arg("program"), nb::arg("results"));
}
