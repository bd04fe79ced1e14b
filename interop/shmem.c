/* A program of OpenSHMEM that compares every byte: puts, gets, atomics, waits, locks, collectives.
 * "shmem BYTES [finalize]" prints one line when everything was as it should be and the processing elements' devices
 * sent at least so many bytes altogether, and else one that names what was not; the status is 1 then. It leaves by
 * shmem_global_exit, or by shmem_finalize if asked to. tests/external/mpi.rs runs it on software devices.
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int me, all, next, before;

#define CHECK(what)                                                                            \
	do {                                                                                   \
		if (!(what)) {                                                                 \
			fprintf(stderr, "PE %d, line %d: not %s\n", me, __LINE__, #what);      \
			shmem_global_exit(1);                                                  \
		}                                                                              \
	} while (0)

#include "sent.h"

/* A few bytes, a packet, more than one, more than one fragment; none is a multiple of the next. */
static const int sizes[] = { 1, 8, 100, 1024, 4095, 8192, 65536, 300000, (1 << 20) + 3 };
enum { SIZES = sizeof sizes / sizeof *sizes, LARGEST = (1 << 20) + 3, MANY = 64, WORDS = 1000 };

static void *room(size_t bytes)
{
	void *memory = shmem_malloc(bytes);
	CHECK(memory);
	memset(memory, 0, bytes);
	shmem_barrier_all(); /* nobody writes into it before */
	return memory;
}

static void give_back(void *memory)
{
	shmem_barrier_all();
	shmem_free(memory);
}

/* A message has bytes of its own: whose it is, its number. */
static unsigned char byte_of(int owner, int number, int at)
{
	return (unsigned char)(at * 7 + (at >> 8) + owner * 31 + number * 13 + 1);
}

static void fill(unsigned char *to, int owner, int number, int bytes)
{
	for (int at = 0; at < bytes; at++)
		to[at] = byte_of(owner, number, at);
}

static int is(const unsigned char *got, int owner, int number, int bytes)
{
	for (int at = 0; at < bytes; at++)
		if (got[at] != byte_of(owner, number, at))
			return 0;
	return 1;
}

/* To the next one and from it: the byte behind is left as it was. */
static void puts_and_gets(void)
{
	unsigned char *far = room(LARGEST + 1), *near = malloc(LARGEST);
	CHECK(near);
	for (int i = 0; i < SIZES; i++) {
		memset(far, 0, LARGEST + 1);
		shmem_barrier_all();
		fill(near, me, i, sizes[i]);
		if (i % 2)
			shmem_putmem(far, near, sizes[i], next);
		else
			shmem_putmem_nbi(far, near, sizes[i], next);
		shmem_barrier_all();
		CHECK(is(far, before, i, sizes[i]) && far[sizes[i]] == 0);
		memset(near, 0, sizes[i]);
		if (i % 2)
			shmem_getmem(near, far, sizes[i], next);
		else
			shmem_getmem_nbi(near, far, sizes[i], next);
		shmem_quiet();
		CHECK(is(near, me, i, sizes[i]));
		shmem_barrier_all();
	}
	free(near);
	give_back(far);
}

/* Every third word, and single ones. */
static void strided(void)
{
	long *far = room(3 * WORDS * sizeof(long)), near[WORDS];
	for (int i = 0; i < WORDS; i++)
		near[i] = me * 1000000L + i;
	shmem_long_iput(far, near, 3, 1, WORDS, next);
	shmem_barrier_all();
	for (int i = 0; i < 3 * WORDS; i++)
		CHECK(far[i] == (i % 3 ? 0 : before * 1000000L + i / 3));
	shmem_barrier_all();
	for (int i = 0; i < MANY; i++)
		shmem_long_p(far + 3 * i + 1, me * 1000L + i, next);
	shmem_barrier_all();
	for (int i = 0; i < MANY; i++) {
		CHECK(far[3 * i + 1] == before * 1000L + i);
		CHECK(shmem_long_g(far + 3 * i + 1, next) == me * 1000L + i);
	}
	give_back(far);
}

/* The words of a put are there when the flag behind the fence is. */
static void flags(void)
{
	long *far = room((WORDS + 1) * sizeof(long)), *answer = room(sizeof(long)), near[WORDS];
	for (long turn = 1; turn <= MANY; turn++) {
		for (int i = 0; i < WORDS; i++)
			near[i] = turn * 1000000 + me * 10000 + i;
		shmem_long_put(far, near, WORDS, next);
		shmem_fence();
		shmem_long_p(far + WORDS, turn, next);
		shmem_long_wait_until(far + WORDS, SHMEM_CMP_EQ, turn);
		for (int i = 0; i < WORDS; i++)
			CHECK(far[i] == turn * 1000000 + before * 10000 + i);
		shmem_long_p(answer, turn, before); /* it may write again */
		shmem_long_wait_until(answer, SHMEM_CMP_EQ, turn);
	}
	shmem_free(answer);
	give_back(far);
}

/* Each number of PE 0's counter is drawn once; one of all swaps. */
static void atomics(void)
{
	static char drawn[1 << 16];
	long *far = room(4 * sizeof(long)), *sum = room(2 * sizeof(long));
	int *half = room(sizeof(int));
	CHECK(MANY * all <= (int)sizeof drawn);
	for (int i = 0; i < MANY; i++) {
		long number = shmem_long_atomic_fetch_inc(far, 0);
		CHECK(number >= 0 && number < MANY * all && !drawn[number]);
		drawn[number] = 1;
		shmem_long_atomic_add(far + 1, number, 0);
		shmem_int_atomic_add(half, 3, 0);
	}
	shmem_long_atomic_add(sum, shmem_long_atomic_compare_swap(far + 2, 0, me + 1, 0) == 0, 0);
	/* A chain of swaps has each value once: the last one is left. */
	shmem_long_atomic_add(sum + 1, shmem_long_atomic_swap(far + 3, me + 1, 0), 0);
	shmem_barrier_all();
	if (me == 0) {
		long last = (long)MANY * all;
		CHECK(far[0] == last && far[1] == last * (last - 1) / 2 && *half == 3 * last);
		CHECK(sum[0] == 1 && far[2] >= 1 && far[2] <= all);
		CHECK(sum[1] + far[3] == (long)all * (all + 1) / 2);
	}
	CHECK(shmem_long_atomic_fetch(far, 0) == (long)MANY * all);
	shmem_barrier_all();
	shmem_long_atomic_set(far, -1 - me, next);
	shmem_barrier_all();
	CHECK(far[0] == -1 - before);
	shmem_free(half);
	shmem_free(sum);
	give_back(far);
}

/* What is not atomic is one's alone while it has the lock. */
static void locks(void)
{
	static long lock, number;
	shmem_barrier_all();
	for (int i = 0; i < 10; i++) {
		shmem_set_lock(&lock);
		shmem_long_p(&number, shmem_long_g(&number, 0) + 1, 0);
		shmem_quiet();
		shmem_clear_lock(&lock);
	}
	shmem_barrier_all();
	CHECK(shmem_long_g(&number, 0) == 10L * all);
	shmem_barrier_all();
}

static void collectives(void)
{
	static long work[SHMEM_REDUCE_MIN_WRKDATA_SIZE > WORDS ? SHMEM_REDUCE_MIN_WRKDATA_SIZE : WORDS];
	static long sync[3][SHMEM_COLLECT_SYNC_SIZE > SHMEM_REDUCE_SYNC_SIZE ? SHMEM_COLLECT_SYNC_SIZE :
									      SHMEM_REDUCE_SYNC_SIZE];
	long *out = room(WORDS * sizeof(long)), *in = room(WORDS * all * sizeof(long));
	for (unsigned i = 0; i < sizeof sync / sizeof *sync; i++)
		for (unsigned word = 0; word < sizeof *sync / sizeof **sync; word++)
			sync[i][word] = SHMEM_SYNC_VALUE;
	for (int i = 0; i < WORDS; i++)
		out[i] = me * 1000000L + i;
	shmem_barrier_all();
	shmem_fcollect64(in, out, WORDS, 0, 0, all, sync[0]);
	for (int i = 0; i < WORDS * all; i++)
		CHECK(in[i] == i / WORDS * 1000000L + i % WORDS);
	shmem_barrier_all();
	shmem_long_sum_to_all(in, out, WORDS, 0, 0, all, work, sync[1]);
	for (int i = 0; i < WORDS; i++)
		CHECK(in[i] == (long)i * all + 1000000L * all * (all - 1) / 2);
	shmem_barrier_all();
	shmem_broadcast64(in, out, WORDS, all - 1, 0, 0, all, sync[2]);
	for (int i = 0; i < WORDS && me != all - 1; i++)
		CHECK(in[i] == (all - 1) * 1000000L + i);
	shmem_free(in);
	give_back(out);
}

int main(int argc, char **argv)
{
	static long bytes;
	shmem_init();
	me = shmem_my_pe();
	all = shmem_n_pes();
	next = (me + 1) % all;
	before = (me + all - 1) % all;
	puts_and_gets();
	strided();
	flags();
	atomics();
	locks();
	collectives();
	shmem_long_atomic_add(&bytes, sent(), 0);
	shmem_barrier_all();
	CHECK(me != 0 || bytes >= (argc > 1 ? atol(argv[1]) : 0));
	shmem_barrier_all();
	if (me == 0) {
		printf("%d PEs: all as it should be; their devices sent %ld bytes\n", all, bytes);
		fflush(stdout);
	}
	if (argc > 2 && !strcmp(argv[2], "finalize")) {
		shmem_finalize();
		return 0;
	}
	shmem_barrier_all();
	shmem_global_exit(0);
}
