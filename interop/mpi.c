/* A program of MPI that compares every byte: messages, collectives, one-sided operations.
 * "mpi BYTES PARTS" ends with 0 when everything was as it should be and the ranks' devices sent at least so many
 * bytes altogether, and else with one line that names what was not. tests/external/mpi.rs runs it on software devices.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

#define CHECK(what)                                                                            \
	do {                                                                                   \
		if (!(what)) {                                                                 \
			fprintf(stderr, "rank %d, line %d: not %s\n", rank, __LINE__, #what);  \
			MPI_Abort(MPI_COMM_WORLD, 1);                                          \
		}                                                                              \
	} while (0)

#include "sent.h"

/* Eager messages, with and without a copy; rendezvous; more than one fragment. */
static const int sizes[] = { 0, 1, 8, 100, 1024, 4095, 8192, 65536, 300000, (1 << 20) + 3 };
enum { SIZES = sizeof sizes / sizeof *sizes, LARGEST = (1 << 20) + 3, MANY = 64, WORDS = 4096 };

static unsigned char *room(size_t bytes)
{
	unsigned char *memory = calloc(bytes + 1, 1);
	CHECK(memory);
	return memory;
}

/* A message has bytes of its own: who sends it, its number, its length. */
static unsigned char byte_of(int sender, int number, int bytes, int at)
{
	return (unsigned char)(at * 7 + (at >> 8) + sender * 31 + number * 13 + bytes);
}

static void fill(unsigned char *to, int sender, int number, int bytes)
{
	for (int at = 0; at < bytes; at++)
		to[at] = byte_of(sender, number, bytes, at);
}

static int is(const unsigned char *got, int sender, int number, int bytes)
{
	for (int at = 0; at < bytes; at++)
		if (got[at] != byte_of(sender, number, bytes, at))
			return 0;
	return 1;
}

/* Every rank sends to the next one. */
static void ring(void)
{
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	unsigned char *out = room(LARGEST), *in = room(LARGEST);
	for (int i = 0; i < SIZES; i++) {
		MPI_Status status;
		int count;
		fill(out, rank, i, sizes[i]);
		memset(in, 0, LARGEST);
		MPI_Sendrecv(out, sizes[i], MPI_BYTE, next, i, in, LARGEST, MPI_BYTE, before, i, MPI_COMM_WORLD,
			     &status);
		MPI_Get_count(&status, MPI_BYTE, &count);
		CHECK(count == sizes[i] && is(in, before, i, count));
	}
	free(out);
	free(in);
}

/* Many messages on their way at once, received in the reverse order: none of them was expected. */
static void unexpected(int bytes)
{
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	unsigned char *out = room((size_t)MANY * bytes), *in = room((size_t)MANY * bytes);
	MPI_Request sent[MANY], received[MANY];
	for (int i = 0; i < MANY; i++) {
		fill(out + (size_t)i * bytes, rank, i, bytes);
		MPI_Isend(out + (size_t)i * bytes, bytes, MPI_BYTE, next, i, MPI_COMM_WORLD, &sent[i]);
	}
	for (int i = MANY - 1; i >= 0; i--)
		MPI_Irecv(in + (size_t)i * bytes, bytes, MPI_BYTE, before, i, MPI_COMM_WORLD, &received[i]);
	MPI_Waitall(MANY, sent, MPI_STATUSES_IGNORE);
	MPI_Waitall(MANY, received, MPI_STATUSES_IGNORE);
	for (int i = 0; i < MANY; i++)
		CHECK(is(in + (size_t)i * bytes, before, i, bytes));
	free(out);
	free(in);
}

/* Rank 0 takes what comes from whom it may be; the others send synchronously. */
static void from_anybody(void)
{
	unsigned char *memory = room(LARGEST);
	for (int i = 0; i < SIZES; i++) {
		if (rank != 0) {
			fill(memory, rank, i, sizes[i]);
			MPI_Ssend(memory, sizes[i], MPI_BYTE, 0, i, MPI_COMM_WORLD);
		}
		for (int n = 1; rank == 0 && n < ranks; n++) {
			MPI_Status status;
			int count;
			MPI_Probe(MPI_ANY_SOURCE, i, MPI_COMM_WORLD, &status);
			MPI_Get_count(&status, MPI_BYTE, &count);
			CHECK(count == sizes[i]);
			MPI_Recv(memory, count, MPI_BYTE, status.MPI_SOURCE, i, MPI_COMM_WORLD, &status);
			CHECK(is(memory, status.MPI_SOURCE, i, count));
		}
	}
	free(memory);
}

/* Every third word: the NIC or the library gathers and scatters. */
static void strided(void)
{
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	int *out = (int *)room(3 * WORDS * sizeof(int)), *in = (int *)room(3 * WORDS * sizeof(int));
	MPI_Datatype third;
	MPI_Type_vector(WORDS, 1, 3, MPI_INT, &third);
	MPI_Type_commit(&third);
	for (int i = 0; i < 3 * WORDS; i++)
		out[i] = rank * 1000000 + i;
	MPI_Sendrecv(out, 1, third, next, 1, in, 1, third, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (int i = 0; i < 3 * WORDS; i++)
		CHECK(in[i] == (i % 3 ? 0 : before * 1000000 + i));
	MPI_Type_free(&third);
	free(out);
	free(in);
}

static void messages(void)
{
	ring();
	unexpected(100);
	unexpected(100000);
	from_anybody();
	strided();
}

static void collectives_of(MPI_Comm comm)
{
	int me, all;
	MPI_Comm_rank(comm, &me);
	MPI_Comm_size(comm, &all);
	for (int i = 0; i < SIZES; i++) {
		int bytes = sizes[i] / all, root = i % all;
		unsigned char *out = room(LARGEST), *in = room(LARGEST);
		MPI_Barrier(comm);
		if (me == root)
			fill(in, root, i, sizes[i]);
		MPI_Bcast(in, sizes[i], MPI_BYTE, root, comm);
		CHECK(is(in, root, i, sizes[i]));
		for (int to = 0; to < all; to++)
			fill(out + (size_t)to * bytes, me, to, bytes);
		MPI_Request request;
		MPI_Ialltoall(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, comm, &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		for (int from = 0; from < all; from++)
			CHECK(is(in + (size_t)from * bytes, from, me, bytes));
		fill(out, me, i, bytes);
		memset(in, 0, LARGEST);
		MPI_Allgather(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, comm);
		for (int from = 0; from < all; from++)
			CHECK(is(in + (size_t)from * bytes, from, i, bytes));
		int words = sizes[i] / (int)sizeof(double);
		double *numbers = (double *)out, *sums = (double *)in;
		for (int n = 0; n < words; n++)
			numbers[n] = n + me;
		MPI_Allreduce(numbers, sums, words, MPI_DOUBLE, MPI_SUM, comm);
		for (int n = 0; n < words; n++)
			CHECK(sums[n] == (double)n * all + all * (all - 1) / 2);
		free(out);
		free(in);
	}
}

static void collectives(void)
{
	MPI_Comm half;
	collectives_of(MPI_COMM_WORLD);
	MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
	collectives_of(half);
	MPI_Comm_free(&half);
}

/* A window of all ranks: WORDS numbers, then a counter and a place to swap at. */
static void one_sided(void)
{
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	long *window, *numbers = (long *)room(WORDS * sizeof(long)), *got = (long *)room(WORDS * sizeof(long));
	MPI_Win win;
	MPI_Win_allocate((WORDS + 2) * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
	memset(window, 0, (WORDS + 2) * sizeof(long));
	for (long i = 0; i < WORDS; i++)
		numbers[i] = rank * 1000000L + i;
	MPI_Win_fence(0, win);
	MPI_Put(numbers, WORDS, MPI_LONG, next, 0, WORDS, MPI_LONG, win);
	MPI_Win_fence(0, win);
	for (long i = 0; i < WORDS; i++)
		CHECK(window[i] == before * 1000000L + i);
	MPI_Win_fence(0, win);
	MPI_Get(got, WORDS, MPI_LONG, next, 0, WORDS, MPI_LONG, win);
	MPI_Win_fence(0, win);
	CHECK(memcmp(got, numbers, WORDS * sizeof(long)) == 0);
	MPI_Accumulate(numbers, WORDS, MPI_LONG, next, 0, WORDS, MPI_LONG, MPI_SUM, win);
	MPI_Win_fence(0, win);
	for (long i = 0; i < WORDS; i++)
		CHECK(window[i] == 2 * (before * 1000000L + i));
	MPI_Barrier(MPI_COMM_WORLD);
	/* Each number of rank 0's counter is drawn once. */
	char *drawn = (char *)room(MANY * ranks), *by_all = (char *)room(MANY * ranks);
	long one = 1, number, zero = 0, me = rank + 1, old;
	MPI_Win_lock_all(0, win);
	for (int i = 0; i < MANY; i++) {
		MPI_Fetch_and_op(&one, &number, MPI_LONG, 0, WORDS, MPI_SUM, win);
		MPI_Win_flush(0, win);
		CHECK(number >= 0 && number < MANY * ranks);
		drawn[number]++;
	}
	MPI_Compare_and_swap(&me, &zero, &old, MPI_LONG, 0, WORDS + 1, win);
	MPI_Win_flush(0, win);
	MPI_Win_unlock_all(win);
	MPI_Allreduce(drawn, by_all, MANY * ranks, MPI_CHAR, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < MANY * ranks; i++)
		CHECK(by_all[i] == 1);
	int swapped = old == 0, swaps;
	MPI_Allreduce(&swapped, &swaps, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	CHECK(swaps == 1);
	/* One at a time in an exclusive lock. */
	for (int i = 0; i < 10; i++) {
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
		MPI_Get(&number, 1, MPI_LONG, 0, WORDS, 1, MPI_LONG, win);
		MPI_Win_flush(0, win);
		number++;
		MPI_Put(&number, 1, MPI_LONG, 0, WORDS, 1, MPI_LONG, win);
		MPI_Win_unlock(0, win);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
	MPI_Get(&number, 1, MPI_LONG, 0, WORDS, 1, MPI_LONG, win);
	MPI_Win_unlock(0, win);
	CHECK(number == (MANY + 10L) * ranks);
	MPI_Win_free(&win);
	free(numbers);
	free(got);
	free(drawn);
	free(by_all);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int i = 2; i < argc; i++) {
		if (!strcmp(argv[i], "messages"))
			messages();
		else if (!strcmp(argv[i], "collectives"))
			collectives();
		else if (!strcmp(argv[i], "one-sided"))
			one_sided();
		else
			CHECK(!"a part");
	}
	long mine = sent(), bytes;
	MPI_Allreduce(&mine, &bytes, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks: all as it should be; their devices sent %ld bytes\n", ranks, bytes);
	CHECK(bytes >= (argc > 1 ? atol(argv[1]) : 0));
	MPI_Finalize();
	return 0;
}
