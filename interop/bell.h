/* What programs share that ring by themselves, past libibverbs: a bell, ways to ring it, and when its page is closed. */
#ifndef BELLPUSH_BELL_H
#define BELLPUSH_BELL_H

#include "preloaded.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

/* A pair that has patience with an engine that others keep from its core. */
static inline void open_patient(struct pair *p)
{
	open_pair(p);
	for (int i = 0; i < 2; i++)
		to_state(p, i, IBV_QPS_RESET);
	for (int i = 0; i < 2; i++) {
		to_state(p, i, IBV_QPS_INIT);
		to_state(p, i, IBV_QPS_RTR);
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
					    .sq_psn = 100 + i, .max_rd_atomic = 4 };
		CHECK(ibv_modify_qp(p->qp[i], &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	}
}

/* One end of a pair as its owner rings it. */
struct bell {
	struct pair *pair;
	struct mlx5dv_qp dv;
	uint32_t qpn;
	uint16_t posted;
	volatile uint64_t *from, *to;
	uint64_t value, random;
	/* What is done between the doorbell record and the doorbell. */
	void (*before)(struct bell *b);
};

struct wqe {
	struct mlx5_wqe_ctrl_seg ctrl;
	struct mlx5_wqe_raddr_seg raddr;
	struct mlx5_wqe_data_seg data;
	uint8_t rest[16];
} __attribute__((aligned(64)));

static inline void take_bell(struct bell *b, struct pair *p, int end)
{
	memset(b, 0, sizeof *b);
	struct mlx5dv_obj obj = { .qp = { .in = p->qp[end], .out = &b->dv } };
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP) == 0);
	b->pair = p;
	b->qpn = p->qp[end]->qp_num;
	b->from = (uint64_t *)(p->mem + end * PAGE);
	b->to = (uint64_t *)(p->mem + (4 + end) * PAGE);
	b->random = 88172645463325252ull + end;
}

static inline uint64_t dice(struct bell *b)
{
	b->random ^= b->random << 13;
	b->random ^= b->random >> 7;
	return b->random ^= b->random << 17;
}

/* Ways to write the register, of which some write all of BlueFlame's 64 bytes. The last two are not for a register that
 * other queue pairs have as well: it would say one's index and the other's number for a moment. */
enum way { WORD, STREAM, SSE, AVX, TWICE, STRING, WAYS, WHOLE = TWICE };

__attribute__((target("avx"))) static inline void store_avx(void *to, const void *from)
{
	for (int i = 0; i < 2; i++)
		_mm256_store_si256((__m256i *)to + i, _mm256_load_si256((const __m256i *)from + i));
}

static inline void store(enum way way, void *to, struct wqe *wqe)
{
	uint64_t word;
	size_t bytes = sizeof *wqe;
	const void *from = wqe;
	memcpy(&word, wqe, sizeof word);
	switch (way) {
	case STREAM:
		_mm_stream_si64(to, word);
		break;
	case TWICE:
		__atomic_store_n((uint32_t *)to, (uint32_t)word, __ATOMIC_RELAXED);
		__atomic_store_n((uint32_t *)to + 1, (uint32_t)(word >> 32), __ATOMIC_RELEASE);
		break;
	case SSE:
		for (int i = 0; i < 4; i++)
			_mm_stream_si128((__m128i *)to + i, _mm_load_si128((const __m128i *)from + i));
		break;
	case AVX:
		if (__builtin_cpu_supports("avx")) {
			store_avx(to, from);
			break;
		}
		/* fall through */
	case STRING:
		__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
		break;
	default:
		__atomic_store_n((uint64_t *)to, word, __ATOMIC_RELEASE);
	}
	_mm_sfence();
}

/* Posts a WRITE of a word by a WQE of its own, and rings. */
static inline void ring(struct bell *b, enum way way)
{
	struct wqe wqe = {
		.raddr = { htobe64((uintptr_t)b->to), htobe32(b->pair->mr->rkey), 0 },
		.data = { htobe32(8), htobe32(b->pair->mr->lkey), htobe64((uintptr_t)b->from) },
	};
	*b->from = ++b->value;
	mlx5dv_set_ctrl_seg(&wqe.ctrl, b->posted, MLX5_OPCODE_RDMA_WRITE, 0, b->qpn, 0, 3, 0, 0);
	memcpy((uint8_t *)b->dv.sq.buf + (b->posted % b->dv.sq.wqe_cnt) * 64, &wqe, sizeof wqe);
	b->posted++;
	__atomic_store_n(&b->dv.dbrec[MLX5_SND_DBR], htobe32(b->posted), __ATOMIC_RELEASE);
	if (b->before)
		b->before(b);
	_mm_sfence();
	store(way, b->dv.bf.reg, &wqe);
}

static inline void await(struct bell *b)
{
	for (double until = now() + 5; *b->to != b->value;) {
		if (now() < until)
			continue;
		struct ibv_wc wc = { .status = 0 };
		for (int i = 0; i < 2; i++) {
			int n = ibv_poll_cq(b->pair->cq[i], 1, &wc);
			fprintf(stderr, "end %d: %d completions, status %d (%x)\n", i, n, wc.status, wc.vendor_err);
		}
		fprintf(stderr, "%u posted in a ring of %u, value %lu of %lu\n", b->posted, b->dv.sq.wqe_cnt,
			*b->to, b->value);
		exit(1);
	}
}

static inline void pause_us(double us)
{
	for (double until = now() + us * 1e-6; now() < until;)
		;
}

/* Whether the program may write to the page as it has it mapped. */
static inline int is_open(const void *page)
{
	unsigned long from, to;
	char line[400], rights[5];
	int open = -1;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 && (uintptr_t)page - from < to - from)
			open = rights[1] == 'w';
	fclose(maps);
	CHECK(open >= 0);
	return open;
}

/* Until the page is closed to the program. */
static inline void until_closed(struct bell *b)
{
	for (double until = now() + 10; is_open(b->dv.bf.reg); await(b)) {
		CHECK(now() < until);
		ring(b, WORD);
		pause_us(100);
	}
}

#endif
