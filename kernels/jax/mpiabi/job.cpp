#include "job.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "collectives.hpp"
#include "python.hpp"

namespace gradientflow::mpiabi {

Job& job() {
  static auto* const one = new Job;  // NOLINT(*-owning-memory): see job.hpp
  return *one;
}

template <class Work>
auto Job::decisive(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const Error& error) {
    throw Error(break_down(error));
  } catch (const std::exception& error) {
    throw Error(break_down({ErrorKind::internal, error.what()}));
  }
}

Error Job::break_down(const Error& error) {
  {
    const std::lock_guard lock(failing_);
    if (failure_) {
      return *failure_;
    }
    failure_ = error;
  }
  std::fprintf(stderr, "gradientflow: %s\n", error.what());  // NOLINT(*-vararg): one write, so that it stays whole
  if (mailbox_ != nullptr) {
    mailbox_->close(false, error);
  }
  return error;
}

engine::Communicator& Job::ranks(const Group& group) const {
  const std::lock_guard lock(failing_);
  if (failure_) {
    throw Error(*failure_);
  }
  if (group.ranks == nullptr) {
    throw Error(ErrorKind::closed, "JAX communicates with ranks that it has not been connected with");
  }
  return *group.ranks;
}

void Job::begin() {
  const std::lock_guard lock(setting_up_);
  if (std::exchange(begun_, true)) {
    return;
  }
  decisive([&] {
    world.ranks = ranks_of_python();
    engine::Communicator& all = *world.ranks;
    mailbox_ = transport::Mailbox::make(all.split(0, all.rank()), "JAX",
                                        [ranks = world.ranks](int rank) { return ranks->is_alive(rank); });
    tags_ = mailbox_->draw_rest();
    for (int rank = 0; rank < all.size(); ++rank) {
      world.job_ranks.push_back(rank);
    }
  });
}

void Job::finish() {
  const std::lock_guard lock(setting_up_);
  if (!begun_ || std::exchange(finished_, true)) {
    return;
  }
  if (mailbox_ != nullptr) {
    mailbox_->close(true);
  }
  for (const auto& part : parts_) {
    if (part->ranks != nullptr) {
      part->ranks->close(true);
    }
  }
  if (world.ranks != nullptr) {
    world.ranks->close(true);
  }
}

Group* Job::add() {
  const std::lock_guard lock(setting_up_);
  return parts_.insert(std::make_unique<Group>()).first->get();
}

void Job::free(Group* part) {
  const std::lock_guard lock(setting_up_);
  const auto found =
      std::find_if(parts_.begin(), parts_.end(), [part](const auto& each) { return each.get() == part; });
  if (found != parts_.end()) {
    if ((*found)->ranks != nullptr) {
      (*found)->ranks->close(false);
    }
    parts_.erase(found);
  }
}

// XLA's key is this process's number in the group. A process with several devices gets several numbers.
void Job::split(int color, int key, Group& part) {
  const std::lock_guard lock(setting_up_);
  decisive([&] {
    engine::Communicator& all = ranks(world);
    struct Membership {
      std::int32_t color;
      std::int32_t key;
    };
    const Membership mine{color, key};
    std::vector<Membership> places(static_cast<std::size_t>(all.size()));
    try {
      allgather(all, &mine, places.data(), sizeof mine);
    } catch (const Error& error) {
      throw Error(error.kind(),
                  std::string("the first use of a group of devices needs all ranks of the job: ") + error.what());
    }
    std::vector<std::pair<Membership, int>> members;
    for (std::size_t rank = 0; rank < places.size(); ++rank) {
      const Membership& place = places[rank];
      const auto others = std::count_if(places.begin(), places.end(), [&](const Membership& each) {
        return each.color == place.color && each.key < place.key;
      });
      if (place.color >= 0 && others != place.key) {
        throw Error(ErrorKind::value,
                    "one CPU device a process is served: leave jax_num_cpu_devices at 1 (or else the ranks have "
                    "not begun to use groups in the same order)");
      }
      if (place.color == color) {
        members.emplace_back(place, static_cast<int>(rank));
      }
    }
    auto endpoint = all.split(color, key);
    part.tag = tags_.at(splits_++ % tags_.count);
    if (endpoint == nullptr) {
      return;
    }
    part.ranks = engine::Communicator::make(std::move(endpoint), all.group().config(), &all);
    part.job_ranks.resize(members.size());
    for (const auto& [place, rank] : members) {
      part.job_ranks[static_cast<std::size_t>(place.key)] = rank;
    }
  });
}

std::shared_ptr<transport::Transfer> Job::send(const Group& group, int to, const void* data, std::size_t bytes) {
  ranks(group).check_rank(to, "the destination");
  return decisive(
      [&] { return mailbox_->send(group.job_ranks[static_cast<std::size_t>(to)], group.tag, data, bytes, nullptr); });
}

std::shared_ptr<transport::Transfer> Job::receive(const Group& group, int from, void* data, std::size_t bytes) {
  ranks(group).check_rank(from, "the source");
  return decisive([&] {
    return mailbox_->receive(group.job_ranks[static_cast<std::size_t>(from)], group.tag, data, bytes, nullptr);
  });
}

void Job::wait(const transport::Transfer& transfer) {
  decisive([&] { mailbox_->wait(transfer, world.ranks->group().config().timeout); });
}

}  // namespace gradientflow::mpiabi
