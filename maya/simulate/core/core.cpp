// maya.simulate._core: the engine for Python. All checks of ranges are made by program.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "engine.h"

namespace nb = nanobind;

namespace {

using namespace maya::simulate;

template <class T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<T> view(const Array<T>& array) {
  return {array.data(), array.size()};
}

using StuckRow = std::tuple<std::uint32_t, std::uint32_t, std::int64_t>;

}  // namespace

NB_MODULE(_core, m) {
  m.attr("ACTIVITIES") = static_cast<int>(kActivities);
  m.def(
      "run",
      [](Array<const std::uint8_t> action, Array<const std::uint8_t> flags,
         Array<const std::uint32_t> stream, Array<const std::int32_t> link,
         Array<const std::int32_t> count, Array<const std::int64_t> host,
         Array<const std::int64_t> duration, Array<const std::uint32_t> rank_begin,
         Array<const std::uint32_t> stream_begin, Array<const std::uint8_t> stream_flags,
         Array<const std::uint32_t> transfers, Array<const std::uint32_t> party_begin,
         Array<const std::uint32_t> party_stream, Array<const std::int64_t> transfer_duration,
         std::uint32_t events, std::uint32_t iterations, std::uint32_t queue_depth,
         std::int64_t launch_call, std::int64_t launch_latency, Array<std::int64_t> issued,
         Array<std::int64_t> start, Array<std::int64_t> end, Array<std::int64_t> iteration_end,
         Array<std::int64_t> activity) {
        const Program program{view(action), view(flags), view(stream), view(link), view(count), view(host),
                              view(duration), view(rank_begin), view(stream_begin), view(stream_flags),
                              view(transfers), view(party_begin), view(party_stream),
                              view(transfer_duration), events, iterations, queue_depth, launch_call,
                              launch_latency};
        const Results results{view(issued), view(start), view(end), view(iteration_end), view(activity)};
        std::vector<StuckRow> stuck;
        std::uint64_t processed = 0;
        {
          nb::gil_scoped_release unlocked;
          Engine engine(program, results);
          for (const Stuck& one : engine.run()) stuck.emplace_back(one.rank, one.call, one.stream);
          processed = engine.events();
        }
        return std::tuple(processed, stuck);
      },
      nb::kw_only(), nb::arg("action"), nb::arg("flags"), nb::arg("stream"), nb::arg("link"),
      nb::arg("count"), nb::arg("host"), nb::arg("duration"), nb::arg("rank_begin"),
      nb::arg("stream_begin"), nb::arg("stream_flags"), nb::arg("transfers"), nb::arg("party_begin"),
      nb::arg("party_stream"), nb::arg("transfer_duration"), nb::arg("events"), nb::arg("iterations"),
      nb::arg("queue_depth"), nb::arg("launch_call"), nb::arg("launch_latency"),
      nb::arg("issued").noconvert(), nb::arg("start").noconvert(), nb::arg("end").noconvert(),
      nb::arg("iteration_end").noconvert(), nb::arg("activity").noconvert());
}
