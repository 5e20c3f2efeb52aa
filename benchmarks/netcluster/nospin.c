// A library to preload (LD_PRELOAD) where more MPI ranks run than there are cores.
//
// MPI libraries look at their sockets again and again without ever sleeping, so ranks that share a
// core take turns by whole ticks of the scheduler. Here a poll without a timeout that finds nothing
// sleeps, after NOSPIN_TRIES (8) such polls in a row, until one of its descriptors is ready, at
// most NOSPIN_US (500) microseconds.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

static int (*real_epoll_wait)(int, struct epoll_event*, int, int);
static int (*real_poll)(struct pollfd*, nfds_t, int);
static struct timespec nap = {0, 500000};
static unsigned tries = 8;
static __thread unsigned in_vain;

__attribute__((constructor)) static void Start(void) {
  real_epoll_wait = dlsym(RTLD_NEXT, "epoll_wait");
  real_poll = dlsym(RTLD_NEXT, "poll");
  const char* microseconds = getenv("NOSPIN_US");
  if (microseconds) nap.tv_nsec = atol(microseconds) * 1000;
  const char* given_tries = getenv("NOSPIN_TRIES");
  if (given_tries) tries = atoi(given_tries);
}

int epoll_wait(int poller, struct epoll_event* events, int most, int timeout) {
  const int found = real_epoll_wait(poller, events, most, timeout);
  if (timeout != 0 || found != 0) {
    in_vain = 0;
    return found;
  }
  return ++in_vain < tries ? 0 : epoll_pwait2(poller, events, most, &nap, NULL);
}

int poll(struct pollfd* descriptors, nfds_t count, int timeout) {
  const int found = real_poll(descriptors, count, timeout);
  if (timeout != 0 || found != 0 || count == 0) {
    in_vain = 0;
    return found;
  }
  return ++in_vain < tries ? 0 : ppoll(descriptors, count, &nap, NULL);
}
