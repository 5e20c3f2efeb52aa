// netdelay DELAY_US BITS_PER_SECOND NAMESPACE...
//
// Slow links for the network namespaces of netcluster.py, on kernels without sch_netem. Packets
// wait in the kernel's NFQUEUEs until they would have left a link of the given rate (0: any rate)
// and have travelled for the given time. Queue 1 of a namespace holds what it sends, its uplink;
// queue 0 what it receives, its downlink, and adds the delay. Bodies of packets stay in the kernel:
// only IPv4 headers are read, and packets that TCP has left for the card to cut (GSO) pass whole,
// but count as the frames that they would be cut into.
//
// Prints "ready" once all queues stand; then works until it is killed.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
  kDownlink = 0,
  kUplink = 1,
  kMostWaiting = 65536,  // packets in one queue; NFQUEUE's own limit
  kMostNamespaces = 256,
  kReadsATurn = 64,
  // A frame of 1,500 bytes holds 40 of headers, 12 of TCP's timestamps and 1,448 of data. On the
  // wire come 38 more: Ethernet's header and checksum, the preamble and the gap between frames.
  kMtu = 1500,
  kIpAndTcp = 52,
  kData = kMtu - kIpAndTcp,
  kEthernet = 38,
};

typedef struct {
  uint64_t due;  // ns since the epoch
  uint32_t id;
} Packet;

typedef struct {
  int fd;
  int number;
  uint64_t delay;         // ns
  double ns_per_byte;     // 0: no limit
  uint64_t link_is_free;  // when the link has sent what it was given
  uint32_t head, tail;    // the packets that wait, in a ring
  Packet waiting[kMostWaiting];
} Queue;

static void Fail(const char* what) {
  perror(what);
  exit(1);
}

static uint64_t Now(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// Messages to the kernel: a header and attributes.
typedef struct {
  struct nlmsghdr header;
  struct nfgenmsg queue;
  char attributes[64];
} Request;

static Request NewRequest(int type, int queue, int flags) {
  Request request = {0};
  request.header.nlmsg_len = NLMSG_LENGTH(sizeof request.queue);
  request.header.nlmsg_type = NFNL_SUBSYS_QUEUE << 8 | type;
  request.header.nlmsg_flags = NLM_F_REQUEST | flags;
  request.queue.version = NFNETLINK_V0;
  request.queue.res_id = htons(queue);
  return request;
}

static void Add(Request* request, int type, const void* data, int length) {
  struct nlattr* attribute = (void*)((char*)request + request->header.nlmsg_len);
  attribute->nla_len = NLA_HDRLEN + length;
  attribute->nla_type = type;
  memcpy((char*)attribute + NLA_HDRLEN, data, length);
  request->header.nlmsg_len += NLA_ALIGN(attribute->nla_len);
}

static void Send(int fd, const Request* request) {
  struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
  const int length = request->header.nlmsg_len;
  if (sendto(fd, request, length, 0, (void*)&kernel, sizeof kernel) < 0) Fail("sendto");
  if (!(request->header.nlmsg_flags & NLM_F_ACK)) return;
  char buffer[4096];
  const ssize_t size = recv(fd, buffer, sizeof buffer, 0);
  const struct nlmsghdr* answer = (void*)buffer;
  const struct nlmsgerr* error = NLMSG_DATA(answer);
  if (size >= 0 && (answer->nlmsg_type != NLMSG_ERROR || error->error == 0)) return;
  if (size >= 0) errno = -error->error;
  Fail("setting up a queue");
}

static void Configure(const Queue* queue) {
  const struct nfqnl_msg_config_cmd bind = {.command = NFQNL_CFG_CMD_BIND, .pf = htons(AF_INET)};
  const struct nfqnl_msg_config_params copy = {.copy_range = htonl(sizeof(uint32_t[5])),
                                               .copy_mode = NFQNL_COPY_PACKET};
  const uint32_t most = htonl(kMostWaiting - 1);
  // Cut by nobody, and let through if we cannot keep up.
  const uint32_t flags = htonl(NFQA_CFG_F_GSO | NFQA_CFG_F_FAIL_OPEN);
  Request request = NewRequest(NFQNL_MSG_CONFIG, queue->number, NLM_F_ACK);
  Add(&request, NFQA_CFG_CMD, &bind, sizeof bind);
  Send(queue->fd, &request);
  request = NewRequest(NFQNL_MSG_CONFIG, queue->number, NLM_F_ACK);
  Add(&request, NFQA_CFG_PARAMS, &copy, sizeof copy);
  Add(&request, NFQA_CFG_QUEUE_MAXLEN, &most, sizeof most);
  Add(&request, NFQA_CFG_FLAGS, &flags, sizeof flags);
  Add(&request, NFQA_CFG_MASK, &flags, sizeof flags);
  Send(queue->fd, &request);
}

// A queue of the namespace that this process is in.
static Queue* OpenQueue(int number, uint64_t delay, double bits_per_second) {
  Queue* queue = calloc(1, sizeof *queue);
  if (queue == NULL) Fail("calloc");
  queue->number = number;
  queue->delay = delay;
  queue->ns_per_byte = bits_per_second > 0 ? 8e9 / bits_per_second : 0;
  queue->fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
  if (queue->fd < 0) Fail("socket");
  const int room = 32 << 20, on = 1;
  setsockopt(queue->fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
  setsockopt(queue->fd, SOL_NETLINK, NETLINK_NO_ENOBUFS, &on, sizeof on);
  struct sockaddr_nl me = {.nl_family = AF_NETLINK};
  if (bind(queue->fd, (void*)&me, sizeof me)) Fail("bind");
  Configure(queue);
  fcntl(queue->fd, F_SETFL, O_NONBLOCK);
  return queue;
}

static void Enter(const char* name) {
  char path[256];
  snprintf(path, sizeof path, "/run/netns/%s", name);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET)) Fail(path);
  close(fd);
}

// When a packet that came at `at` has passed the link.
static uint64_t Due(Queue* queue, uint64_t at, uint32_t length) {
  if (queue->ns_per_byte == 0) return at + queue->delay;
  const uint32_t frames = length <= kMtu ? 1 : (length - kIpAndTcp + kData - 1) / kData;
  const uint32_t bytes = length + frames * kEthernet + (frames - 1) * kIpAndTcp;
  const uint64_t duration = bytes * queue->ns_per_byte;
  // A downlink may send a frame while the sender's uplink still sends the next ones.
  const uint64_t earliest = queue->number == kUplink ? at + duration : at;
  const uint64_t after_others = queue->link_is_free + duration;
  queue->link_is_free = after_others > earliest ? after_others : earliest;
  return queue->link_is_free + queue->delay;
}

static void TakePacket(Queue* queue, const struct nlmsghdr* message, uint64_t now) {
  uint32_t id = 0, length = 60;
  uint64_t at = now;
  const size_t skipped = NLMSG_ALIGN(sizeof(struct nfgenmsg));
  const char* next = (const char*)NLMSG_DATA(message) + skipped;
  const char* end = (const char*)message + message->nlmsg_len;
  while (next + NLA_HDRLEN <= end) {
    const struct nlattr* attribute = (const void*)next;
    if (attribute->nla_len < NLA_HDRLEN) break;
    const void* data = next + NLA_HDRLEN;
    switch (attribute->nla_type & NLA_TYPE_MASK) {
      case NFQA_PACKET_HDR:
        id = ntohl(((const struct nfqnl_msg_packet_hdr*)data)->packet_id);
        break;
      case NFQA_CAP_LEN:
        length = ntohl(*(const uint32_t*)data);
        break;
      case NFQA_TIMESTAMP: {
        struct nfqnl_msg_packet_timestamp stamp;
        memcpy(&stamp, data, sizeof stamp);
        at = be64toh(stamp.sec) * 1000000000 + be64toh(stamp.usec) * 1000;
      }
    }
    next += NLA_ALIGN(attribute->nla_len);
  }
  queue->waiting[queue->head++ % kMostWaiting] = (Packet){Due(queue, at, length), id};
}

static void TakePackets(Queue* queue) {
  static char buffer[1 << 16];
  for (int turn = 0; turn < kReadsATurn; ++turn) {
    ssize_t left = recv(queue->fd, buffer, sizeof buffer, 0);
    if (left <= 0) return;
    const uint64_t now = Now();
    for (struct nlmsghdr* m = (void*)buffer; NLMSG_OK(m, left); m = NLMSG_NEXT(m, left)) {
      if (m->nlmsg_type == (NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_PACKET)) TakePacket(queue, m, now);
    }
  }
}

// Lets all packets go whose time has come. Returns when the next one's will, or UINT64_MAX.
static uint64_t Release(Queue* queue) {
  const uint64_t now = Now();
  bool any = false;
  uint32_t last = 0;
  for (; queue->tail != queue->head; ++queue->tail) {
    const Packet* packet = &queue->waiting[queue->tail % kMostWaiting];
    if (packet->due > now) break;
    last = packet->id;
    any = true;
  }
  if (any) {
    const struct nfqnl_msg_verdict_hdr verdict = {htonl(NF_ACCEPT), htonl(last)};
    Request request = NewRequest(NFQNL_MSG_VERDICT_BATCH, queue->number, 0);
    Add(&request, NFQA_VERDICT_HDR, &verdict, sizeof verdict);
    Send(queue->fd, &request);
  }
  return queue->tail == queue->head ? UINT64_MAX : queue->waiting[queue->tail % kMostWaiting].due;
}

static void Work(Queue** queues, int count) {
  const int poller = epoll_create1(EPOLL_CLOEXEC);
  for (int i = 0; i < count; ++i) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = queues[i]};
    epoll_ctl(poller, EPOLL_CTL_ADD, queues[i]->fd, &event);
  }
  uint64_t lateness = 20000;  // ns by which timers wake us late; the rest of a wait is polled
  while (true) {
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < count; ++i) {
      const uint64_t due = Release(queues[i]);
      if (due < next) next = due;
    }
    const uint64_t now = Now();
    const uint64_t pause = next > now + lateness ? next - now - lateness : 0;
    const struct timespec limit = {pause / 1000000000, pause % 1000000000};
    struct epoll_event events[64];
    const int n = epoll_pwait2(poller, events, 64, next == UINT64_MAX ? NULL : &limit, NULL);
    if (n < 0 && errno != EINTR) Fail("epoll_pwait2");
    if (n == 0 && pause > 0) {
      const uint64_t late = Now() - (now + pause);
      if (late <= 200000) lateness = (lateness * 15 + late) / 16;
    }
    for (int i = 0; i < n; ++i) TakePackets(events[i].data.ptr);
  }
}

int main(int argc, char** argv) {
  if (argc < 4 || argc - 3 > kMostNamespaces) {
    fprintf(stderr, "usage: netdelay DELAY_US BITS_PER_SECOND NAMESPACE... (at most %d)\n",
            kMostNamespaces);
    return 2;
  }
  const uint64_t delay = strtod(argv[1], NULL) * 1000;
  const double rate = strtod(argv[2], NULL);
  static Queue* queues[2 * kMostNamespaces];
  int count = 0;
  for (int i = 3; i < argc; ++i) {
    Enter(argv[i]);
    queues[count++] = OpenQueue(kDownlink, delay, rate);
    if (rate > 0) queues[count++] = OpenQueue(kUplink, 0, rate);
  }
  const struct sched_param priority = {.sched_priority = 50};
  if (sched_setscheduler(0, SCHED_FIFO, &priority)) perror("SCHED_FIFO, going on without it");
  prctl(PR_SET_TIMERSLACK, 1);
  // As long as a socket wants timestamps, the kernel notes when packets arrive.
  const int on = 1, stamped = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  setsockopt(stamped, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
  puts("ready");
  fflush(stdout);
  Work(queues, count);
}
