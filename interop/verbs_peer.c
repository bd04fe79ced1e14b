/*
 * One end of a test between RDMA devices, on plain libibverbs, remote-controlled over TCP.
 *
 *     verbs_peer DEVICE GID_INDEX PORT
 *
 * A connection has one memory region and one queue pair at a time; the scenario lies with whoever
 * drives both ends. A request is a line of words, numbers in C's notation; the answer is a line
 * that begins with `ok`, or `error` and why:
 *
 *     open BYTES                   -> GID ADDRESS RKEY     memory with every right
 *     region OFFSET BYTES RIGHTS   -> ADDRESS RKEY         a part of it again; RIGHTS: of "wra", or -
 *     qp rc|uc|ud                  -> QPN PSN              a new queue pair in INIT, for the last one
 *     connect GID QPN PSN MTU TIMEOUT RETRY RNR_RETRY MIN_RNR_TIMER
 *     fill OFFSET BYTES SEED                               the pattern of a seed
 *     check OFFSET BYTES SEED                              error if it is not there
 *     put OFFSET VALUE                                     8 bytes, the machine's byte order
 *     get OFFSET                   -> VALUE
 *     recv OFFSET BYTES
 *     post OPERATION OFFSET BYTES ADDRESS RKEY A B         A: immediate, addend or compare; B: swap,
 *                                                          or a datagram's Q_Key
 *     poll send|recv MILLISECONDS  -> STATUS BYTES IMMEDIATE, or none
 *     state                        -> STATE
 *
 * OPERATION: write write_imm read send send_imm fetch_add cmp_swap. STATUS and STATE are numbers of
 * ibv_wc_status and ibv_qp_state. In `connect` MTU is in bytes, the others are as ibv_modify_qp has
 * them. Datagrams are received with Q_Key 0x11111111.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

enum {
  QKEY = 0x11111111,
  MAX_BYTES = 64 << 20,
  MAX_WR = 256,
  MAX_RD_ATOMIC = 16,
  PORT_NUM = 1,
  IDLE_SECONDS = 120,
};

static const int ALL_RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                              IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

static struct {
  int gid_index;
  struct ibv_context *context;
  struct ibv_pd *pd;
  struct ibv_cq *send_cq, *recv_cq;
  struct ibv_mr *mr;
  struct ibv_qp *qp;
  uint32_t psn;
  /* Datagrams only: the peer. */
  struct ibv_ah *ah;
  uint32_t peer_qpn;
  uint8_t *memory;
  uint64_t bytes;
  FILE *out;
} self;

static void answer(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void answer(const char *format, ...) {
  va_list list;
  va_start(list, format);
  vfprintf(self.out, format, list);
  va_end(list);
  fputc('\n', self.out);
  fflush(self.out);
}

static void failed(const char *what) { answer("error %s: %m", what); }

static int inside(uint64_t offset, uint64_t bytes) {
  if (offset <= self.bytes && bytes <= self.bytes - offset) return 1;
  answer("error outside of the memory");
  return 0;
}

/* Byte `i` of a seed's pattern: splitmix64 of seed and word, little endian. */
static uint8_t pattern(uint64_t seed, uint64_t i) {
  uint64_t x = (seed << 32 | i / 8) + 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  x ^= x >> 31;
  return x >> 8 * (i % 8);
}

/* ---- Commands ------------------------------------------------------------------------------ */

static void open_memory(uint64_t bytes) {
  union ibv_gid gid;
  if (self.mr || !bytes || bytes > MAX_BYTES) return answer("error open once, up to 64 MiB");
  if (posix_memalign((void **)&self.memory, 4096, bytes)) return failed("posix_memalign");
  memset(self.memory, 0, bytes);
  self.mr = ibv_reg_mr(self.pd, self.memory, bytes, ALL_RIGHTS);
  if (!self.mr) return failed("ibv_reg_mr");
  if (ibv_query_gid(self.context, PORT_NUM, self.gid_index, &gid)) return failed("ibv_query_gid");
  self.bytes = bytes;
  char hex[2 * sizeof gid + 1];
  for (unsigned i = 0; i < sizeof gid; i++) sprintf(hex + 2 * i, "%02x", gid.raw[i]);
  answer("ok %s %#" PRIx64 " %#x", hex, (uint64_t)(uintptr_t)self.memory, self.mr->rkey);
}

static void add_region(uint64_t offset, uint64_t bytes, const char *rights) {
  int access = IBV_ACCESS_LOCAL_WRITE;
  if (strchr(rights, 'w')) access |= IBV_ACCESS_REMOTE_WRITE;
  if (strchr(rights, 'r')) access |= IBV_ACCESS_REMOTE_READ;
  if (strchr(rights, 'a')) access |= IBV_ACCESS_REMOTE_ATOMIC;
  if (!inside(offset, bytes)) return;
  struct ibv_mr *mr = ibv_reg_mr(self.pd, self.memory + offset, bytes, access);
  if (!mr) return failed("ibv_reg_mr");
  answer("ok %#" PRIx64 " %#x", (uint64_t)(uintptr_t)mr->addr, mr->rkey);
}

static void new_qp(const char *type) {
  struct ibv_wc wc;
  struct ibv_qp_init_attr init = {
      .send_cq = self.send_cq,
      .recv_cq = self.recv_cq,
      .cap = {.max_send_wr = MAX_WR, .max_recv_wr = MAX_WR, .max_send_sge = 1, .max_recv_sge = 1},
      .qp_type = !strcmp(type, "rc")   ? IBV_QPT_RC
                 : !strcmp(type, "uc") ? IBV_QPT_UC
                 : !strcmp(type, "ud") ? IBV_QPT_UD
                                       : 0,
      .sq_sig_all = 1,
  };
  if (!init.qp_type) return answer("error no such type");
  if (self.qp && ibv_destroy_qp(self.qp)) return failed("ibv_destroy_qp");
  if (self.ah && ibv_destroy_ah(self.ah)) return failed("ibv_destroy_ah");
  self.ah = NULL;
  while (ibv_poll_cq(self.send_cq, 1, &wc) > 0 || ibv_poll_cq(self.recv_cq, 1, &wc) > 0) continue;
  self.qp = ibv_create_qp(self.pd, &init);
  if (!self.qp) return failed("ibv_create_qp");

  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_INIT,
      .port_num = PORT_NUM,
      .qkey = QKEY,
      .qp_access_flags = ALL_RIGHTS,
  };
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  mask |= init.qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
  if (ibv_modify_qp(self.qp, &attr, mask)) return failed("ibv_modify_qp to INIT");
  if (getrandom(&self.psn, sizeof self.psn, 0) < 0) return failed("getrandom");
  self.psn &= 0xffffff;
  answer("ok %#x %#x", self.qp->qp_num, self.psn);
}

static void connect_qp(const char *gid, uint32_t qpn, uint32_t psn, uint32_t mtu, uint8_t timeout,
                       uint8_t retry, uint8_t rnr_retry, uint8_t min_rnr_timer) {
  if (!self.qp) return answer("error no queue pair");
  if (mtu < 256 || mtu > 4096 || (mtu & (mtu - 1))) return answer("error MTU");
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = IBV_MTU_256 + __builtin_ctz(mtu / 256),
      .dest_qp_num = qpn,
      .rq_psn = psn,
      .max_dest_rd_atomic = MAX_RD_ATOMIC,
      .min_rnr_timer = min_rnr_timer,
      .ah_attr = {.is_global = 1,
                  .port_num = PORT_NUM,
                  .grh = {.sgid_index = self.gid_index, .hop_limit = 64}},
  };
  for (unsigned i = 0; i < 16; i++)
    if (sscanf(gid + 2 * i, "%2hhx", &attr.ah_attr.grh.dgid.raw[i]) != 1)
      return answer("error GID");

  enum ibv_qp_type type = self.qp->qp_type;
  int mask = IBV_QP_STATE;
  if (type == IBV_QPT_UD) {
    self.peer_qpn = qpn;
    self.ah = ibv_create_ah(self.pd, &attr.ah_attr);
    if (!self.ah) return failed("ibv_create_ah");
  } else {
    mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  }
  if (type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  if (ibv_modify_qp(self.qp, &attr, mask)) return failed("ibv_modify_qp to RTR");

  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = self.psn;
  attr.timeout = timeout;
  attr.retry_cnt = retry;
  attr.rnr_retry = rnr_retry;
  attr.max_rd_atomic = MAX_RD_ATOMIC;
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (type == IBV_QPT_RC)
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  if (ibv_modify_qp(self.qp, &attr, mask)) return failed("ibv_modify_qp to RTS");
  answer("ok");
}

static void post_recv(uint64_t offset, uint32_t bytes) {
  if (!self.qp || !inside(offset, bytes)) return;
  struct ibv_sge sge = {(uintptr_t)self.memory + offset, bytes, self.mr->lkey};
  struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
  if ((errno = ibv_post_recv(self.qp, &wr, &bad))) return failed("ibv_post_recv");
  answer("ok");
}

static void post_send(const char *operation, uint64_t offset, uint32_t bytes, uint64_t address,
                      uint32_t rkey, uint64_t a, uint64_t b) {
  static const struct {
    const char *name;
    enum ibv_wr_opcode opcode;
  } operations[] = {
      {"write", IBV_WR_RDMA_WRITE},           {"write_imm", IBV_WR_RDMA_WRITE_WITH_IMM},
      {"read", IBV_WR_RDMA_READ},             {"send", IBV_WR_SEND},
      {"send_imm", IBV_WR_SEND_WITH_IMM},     {"fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD},
      {"cmp_swap", IBV_WR_ATOMIC_CMP_AND_SWP},
  };
  unsigned count = sizeof operations / sizeof *operations, i = 0;
  while (i < count && strcmp(operations[i].name, operation)) i++;
  if (i == count) return answer("error no such operation");
  if (!self.qp || !inside(offset, bytes)) return;

  struct ibv_sge sge = {(uintptr_t)self.memory + offset, bytes, self.mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = bytes > 0, .opcode = operations[i].opcode}, *bad;
  wr.imm_data = htonl(a);
  if (self.qp->qp_type == IBV_QPT_UD) {
    wr.wr.ud.ah = self.ah;
    wr.wr.ud.remote_qpn = self.peer_qpn;
    wr.wr.ud.remote_qkey = b;
  } else if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
    wr.wr.atomic.remote_addr = address;
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.compare_add = a;
    wr.wr.atomic.swap = b;
  } else {
    wr.wr.rdma.remote_addr = address;
    wr.wr.rdma.rkey = rkey;
  }
  if ((errno = ibv_post_send(self.qp, &wr, &bad))) return failed("ibv_post_send");
  answer("ok");
}

static uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

static void poll_cq(struct ibv_cq *cq, uint64_t milliseconds) {
  uint64_t end = now_ms() + milliseconds;
  struct ibv_wc wc;
  int polled;
  while (!(polled = ibv_poll_cq(cq, 1, &wc))) {
    if (now_ms() >= end) return answer("ok none");
    usleep(50);
  }
  if (polled < 0) return answer("error ibv_poll_cq");
  /* After an error only wr_id, status and the like are valid. */
  int good = wc.status == IBV_WC_SUCCESS;
  uint32_t imm = good && wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) : 0;
  answer("ok %d %u %#x", wc.status, good ? wc.byte_len : 0, imm);
}

static void query_state(void) {
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  if (!self.qp || ibv_query_qp(self.qp, &attr, IBV_QP_STATE, &init)) return failed("ibv_query_qp");
  answer("ok %d", attr.qp_state);
}

/* ---- The connection ------------------------------------------------------------------------ */

/* Its words are numbers from `first` on: at most 8 of them. */
static int numbers(char **words, int count, int first, uint64_t *values) {
  for (int i = first; i < count; i++) {
    char *end;
    values[i - first] = strtoull(words[i], &end, 0);
    if (*end) return 0;
  }
  return 1;
}

static void run(char *line) {
  char *words[12];
  int count = 0;
  for (char *w = strtok(line, " \r\n"); w && count < 12; w = strtok(NULL, " \r\n")) words[count++] = w;
  if (!count) return answer("error empty");
  uint64_t n[12];
  /* Which command, how many operands, and which of them is the first number. */
#define IS(name, operands, first) \
  (!strcmp(words[0], name) && count == 1 + (operands) && \
   numbers(words, count, 1 + (first), n))
  if (IS("open", 1, 0)) return open_memory(n[0]);
  if (!self.mr) return answer("error open first");
  if (IS("region", 3, 3)) {
    if (!numbers(words, 3, 1, n)) return answer("error number");
    return add_region(n[0], n[1], words[3]);
  }
  if (IS("qp", 1, 1)) return new_qp(words[1]);
  if (IS("connect", 8, 1)) {
    return connect_qp(words[1], n[0], n[1], n[2], n[3], n[4], n[5], n[6]);
  }
  if (IS("recv", 2, 0)) return post_recv(n[0], n[1]);
  if (IS("post", 7, 1)) return post_send(words[1], n[0], n[1], n[2], n[3], n[4], n[5]);
  if (IS("poll", 2, 1)) {
    return poll_cq(!strcmp(words[1], "send") ? self.send_cq : self.recv_cq, n[0]);
  }
  if (IS("state", 0, 0)) return query_state();
  if (IS("fill", 3, 0)) {
    if (!inside(n[0], n[1])) return;
    for (uint64_t i = 0; i < n[1]; i++) self.memory[n[0] + i] = pattern(n[2], i);
    return answer("ok");
  }
  if (IS("check", 3, 0)) {
    if (!inside(n[0], n[1])) return;
    for (uint64_t i = 0; i < n[1]; i++) {
      uint8_t is = self.memory[n[0] + i], want = pattern(n[2], i);
      if (is != want) return answer("error byte %" PRIu64 " is %#x, not %#x", i, is, want);
    }
    return answer("ok");
  }
  if (IS("put", 2, 0)) {
    if (!inside(n[0], 8)) return;
    memcpy(self.memory + n[0], &n[1], 8);
    return answer("ok");
  }
  if (IS("get", 1, 0)) {
    if (!inside(n[0], 8)) return;
    memcpy(&n[1], self.memory + n[0], 8);
    return answer("ok %#" PRIx64, n[1]);
  }
  answer("error no such command");
}

static void serve(int connection, const char *device) {
  struct timeval idle = {.tv_sec = IDLE_SECONDS};
  int on = 1;
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &idle, sizeof idle);
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  FILE *in = fdopen(connection, "r");
  self.out = fdopen(dup(connection), "w");
  if (!in || !self.out) return perror("fdopen");

  struct ibv_device **list = ibv_get_device_list(NULL);
  for (int i = 0; list && list[i]; i++) {
    if (!strcmp(ibv_get_device_name(list[i]), device)) self.context = ibv_open_device(list[i]);
  }
  if (!self.context) return answer("error no device %s", device);
  self.pd = ibv_alloc_pd(self.context);
  self.send_cq = ibv_create_cq(self.context, MAX_WR, NULL, NULL, 0);
  self.recv_cq = ibv_create_cq(self.context, MAX_WR, NULL, NULL, 0);
  if (!self.pd || !self.send_cq || !self.recv_cq) return failed("ibv_alloc_pd, ibv_create_cq");

  char line[512];
  while (fgets(line, sizeof line, in)) run(line);
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: verbs_peer DEVICE GID_INDEX PORT\n");
    return 2;
  }
  self.gid_index = atoi(argv[2]);
  int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 8)) {
    perror("verbs_peer: cannot listen");
    return 1;
  }
  signal(SIGCHLD, SIG_IGN); /* no zombies */
  for (;;) {
    int connection = accept(listener, NULL, NULL);
    if (connection < 0) continue;
    /* A process for a connection: whatever it leaves behind ends with it. */
    pid_t child = fork();
    if (!child) {
      close(listener);
      serve(connection, argv[1]);
      return 0;
    }
    close(connection);
  }
}
