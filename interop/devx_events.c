/* Event channels of DEVX, and receive memory pools, through libmlx5. Prints one line for each thing shown; exits 1 at
 * the first that fails. */
#include "devx.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

enum { COMPLETION = 0, LAST_WQE = 0x13, WQ_FATAL = 5, COOKIE = 0x1234567, WQES = 4, STRIDE = 32 };

static struct mlx5dv_devx_event_channel *channel(int flags)
{
	struct mlx5dv_devx_event_channel *c = mlx5dv_devx_create_event_channel(ctx, flags);
	MUST(c, "event channel");
	return c;
}

static int comes(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	return poll(&p, 1, ms) == 1;
}

static int subscribe(struct mlx5dv_devx_event_channel *c, struct mlx5dv_devx_obj *obj, uint16_t type)
{
	return mlx5dv_devx_subscribe_devx_event(c, obj, sizeof(type), &type, COOKIE);
}

static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;
	MUST(dir, "/proc/self/fd");
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Asks for the next completion's event, as a driver does: the record, then the register. */
static void arm(struct cq *cq, uint32_t sequence)
{
	uint32_t word = (sequence & 3) << 28 | (cq->taken & 0xffffff);
	__atomic_store_n((uint32_t *)cq->dbr.at + 1, htobe32(word), __ATOMIC_RELEASE);
	uint64_t bell = (uint64_t)word << 32 | cq->number;
	__atomic_store_n((uint64_t *)((uint8_t *)cq->uar->base_addr + 0x20), htobe64(bell), __ATOMIC_RELEASE);
}

static void completions(struct qp *qp, struct area *from, struct ibv_mr *src, struct area *to, struct ibv_mr *dst)
{
	struct { struct mlx5dv_devx_async_event_hdr head; uint8_t eqe[64]; uint8_t room[100]; } event;
	struct mlx5dv_devx_event_channel *c = channel(0);
	int counter = eventfd(0, 0);
	uint64_t count = 0;
	MUST(subscribe(c, qp->cq->obj, LAST_WQE), "a CQ has no such event");
	MUST(errno == EINVAL, "a CQ has no such event");
	MUST(!subscribe(c, qp->cq->obj, COMPLETION), "completions");
	MUST(!mlx5dv_devx_subscribe_devx_event_fd(c, counter, qp->cq->obj, COMPLETION), "completions by eventfd");
	post_write(qp, from->at, src->lkey, to->at, dst->rkey, 64);
	ring(qp);
	MUST(wait_for(qp, 1) == 0, "WRITE");
	MUST(!comes(c->fd, 100), "an event of a CQ that is not armed");
	for (int i = 0; i < 3; i++) {
		arm(qp->cq, i);
		for (int k = 0; k < 2; k++) {
			post_write(qp, from->at, src->lkey, to->at, dst->rkey, 64);
			ring(qp);
			MUST(wait_for(qp, 1) == 0, "WRITE");
		}
		MUST(comes(c->fd, 5000), "no event of arming %d", i);
		memset(&event, 0, sizeof(event));
		ssize_t n = mlx5dv_devx_get_event(c, &event.head, sizeof(event));
		MUST(n == 72, "an event has %zd bytes", n);
		MUST(event.head.cookie == COOKIE && event.eqe[1] == COMPLETION, "cookie or type");
		MUST(be32toh(*(uint32_t *)(event.eqe + 56)) == qp->cq->number, "the CQ's number");
		MUST(!comes(c->fd, 50), "a second event of arming %d", i);
	}
	MUST(read(counter, &count, 8) == 8 && count == 3, "%u events counted", (unsigned)count);

	/* A counter that is full holds nothing up, and a channel that is closed takes its subscriptions along. */
	count = UINT64_MAX - 1;
	MUST(write(counter, &count, 8) == 8, "filling a counter");
	for (int i = 3; i < 5; i++) {
		arm(qp->cq, i);
		post_write(qp, from->at, src->lkey, to->at, dst->rkey, 64);
		ring(qp);
		MUST(wait_for(qp, 1) == 0, "WRITE beside a full counter");
		MUST(comes(c->fd, 5000), "no event beside a full counter");
		MUST(mlx5dv_devx_get_event(c, &event.head, sizeof(event)) == 72, "its bytes");
	}
	MUST(read(counter, &count, 8) == 8 && count == UINT64_MAX - 1, "a full counter counts on");
	mlx5dv_devx_destroy_event_channel(c);
	arm(qp->cq, 5);
	post_write(qp, from->at, src->lkey, to->at, dst->rkey, 64);
	ring(qp);
	MUST(wait_for(qp, 1) == 0, "WRITE");
	MUST(!comes(counter, 100), "a subscription is left of a channel that is closed");
	int before = descriptors();
	for (int i = 0; i < 20; i++) {
		c = channel(0);
		MUST(!mlx5dv_devx_subscribe_devx_event_fd(c, counter, NULL, 9), "the port's changes by eventfd");
		mlx5dv_devx_destroy_event_channel(c);
	}
	MUST(descriptors() == before, "%d descriptors are left of channels that are closed", descriptors() - before);
	close(counter);
	puts("completions");
}

/* A pool of `type`, whose WQEs are linked in the order of the ring. */
static struct mlx5dv_devx_obj *pool(int type, struct area *wqes, struct area *dbr, uint32_t *number)
{
	uint8_t in[0x110] = { 0 }, out[16] = { 0 }, *wq = in + 0x50;
	*wqes = area(WQES * STRIDE, 0);
	*dbr = area(64, 0);
	for (int i = 0; i < WQES; i++)
		set(wqes->at + i * STRIDE, 2, 0, 16, (i + 1) % WQES);
	set(in, 0, 0, 16, 0x90c);
	set(in + 0x20, 1, 0, 4, 1); /* RDY */
	set(wq, 0, 0, 4, type);
	set(wq, 9, 0, 24, pdn);
	set(wq, 0x21, 4, 4, 5);
	set(wq, 0x23, 3, 5, 2);
	set(wq, 0x28, 0, 32, dbr->umem->umem_id);
	set(wq, 0x2c, 0, 32, wqes->umem->umem_id);
	struct mlx5dv_devx_obj *obj = mlx5dv_devx_obj_create(ctx, in, sizeof(in), out, sizeof(out));
	*number = get(out, 9, 0, 24);
	return obj;
}

/* Messages to a pool, round its ring: the CQEs' counters are places of a list, and go on of a ring. */
static void pools(struct qp *qp, struct area *from, struct ibv_mr *src, struct area *to, struct ibv_mr *dst, int type)
{
	struct area wqes, dbr;
	uint32_t number;
	struct mlx5dv_devx_obj *rmp = pool(type, &wqes, &dbr, &number);
	MUST(rmp, "CREATE_RMP of type %d", type);
	struct cq cq = make_cq(0);
	struct qp end = make_receiver(&cq, number);
	MUST(end.obj, "a queue pair on a pool");
	connect_to(&end, qp->number);
	connect_to(qp, end.number);
	MUST(mlx5dv_devx_obj_destroy(rmp) == EBUSY, "a pool in use was destroyed");
	struct mlx5dv_devx_event_channel *c = channel(MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA);
	MUST(!subscribe(c, end.obj, LAST_WQE), "the last WQE");
	for (uint32_t i = 0; i < 3 * WQES; i++) {
		uint8_t *seg = wqes.at + i % WQES * STRIDE + 16;
		set(seg, 0, 0, 32, 64);
		set(seg, 4, 0, 32, dst->lkey);
		set(seg, 8, 0, 64, (uintptr_t)to->at + i * 64);
		__atomic_store_n((uint32_t *)dbr.at, htobe32(i + 1), __ATOMIC_RELEASE);
		fill(from->at, 64, i);
		post_write(qp, from->at, src->lkey, NULL, 0, 64);
		/* A SEND has no remote address: its data come at once. */
		uint8_t *wqe = qp->wq.at + (qp->index - 1) % DEPTH * 64;
		wqe[3] = 0x0a;
		wqe[7] = 2;
		memcpy(wqe + 16, wqe + 32, 16);
		ring(qp);
		MUST(wait_for(qp, 1) == 0, "SEND %u", i);
		end.index = (type ? i : i % WQES) + 1;
		MUST(wait_for(&end, 7) == 2, "receive %u", i);
		MUST(!memcmp(from->at, to->at + i * 64, 64), "bytes of SEND %u", i);
	}
	MUST(!comes(c->fd, 0), "an event too early");
	uint8_t out[16] = { 0 };
	MUST(!move(&end, 0x507, 0, out), "2ERR_QP");
	MUST(comes(c->fd, 5000), "no event of the last WQE");
	struct mlx5dv_devx_async_event_hdr event;
	MUST(mlx5dv_devx_get_event(c, &event, sizeof(event)) == 8 && event.cookie == COOKIE, "its cookie");
	mlx5dv_devx_destroy_event_channel(c);
	MUST(!move(qp, 0x50a, 0, out), "2RST_QP");
	MUST(!mlx5dv_devx_obj_destroy(end.obj) && !mlx5dv_devx_obj_destroy(rmp), "the pool");
	MUST(!mlx5dv_devx_obj_destroy(cq.obj), "its CQ");
	printf("pool %d\n", type);
}

static void refusals(struct qp *qp)
{
	struct area wqes, dbr;
	uint32_t number;
	struct mlx5dv_devx_event_channel *c = channel(0);
	MUST(!mlx5dv_devx_create_event_channel(ctx, 6), "a channel with unknown flags");
	uint16_t three[2] = { WQ_FATAL, 0 };
	MUST(mlx5dv_devx_subscribe_devx_event(c, qp->obj, 3, three, 0), "a type of one byte and a half");
	MUST(subscribe(c, qp->obj, 0x77), "an unknown type");
	MUST(subscribe(c, NULL, WQ_FATAL), "the device has no such event");
	MUST(!subscribe(c, NULL, 9), "the port's changes");
	MUST(mlx5dv_devx_subscribe_devx_event_fd(c, 10000, qp->obj, WQ_FATAL), "an eventfd that is not there");
	int ends[2];
	MUST(pipe(ends) == 0, "pipe");
	MUST(mlx5dv_devx_subscribe_devx_event_fd(c, ends[1], qp->obj, WQ_FATAL) && errno == EINVAL, "a pipe is no eventfd");
	close(ends[0]);
	close(ends[1]);
	MUST(!pool(3, &wqes, &dbr, &number), "a pool of strides");
	mlx5dv_devx_destroy_event_channel(c);
	puts("refusals");
}

int main(void)
{
	open_device();
	struct cq cq = make_cq(0);
	struct qp a = make_qp(&cq, 1, 0), b = make_qp(&cq, 2, 0);
	MUST(a.obj && b.obj, "CREATE_QP");
	connect_to(&a, b.number);
	connect_to(&b, a.number);
	struct area from = area(DATA, 0), to = area(DATA, IBV_ACCESS_LOCAL_WRITE);
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_mr *src = ibv_reg_mr(pd, from.at, DATA, all), *dst = ibv_reg_mr(pd, to.at, DATA, all);
	MUST(src && dst, "MRs");
	completions(&a, &from, src, &to, dst);
	refusals(&a);
	uint8_t out[16] = { 0 };
	for (int type = 0; type < 2; type++) {
		if (!type)
			MUST(!move(&a, 0x50a, 0, out), "2RST_QP");
		a.index = 0;
		memset(a.dbr.at, 0, 64);
		pools(&a, &from, src, &to, dst, type);
	}
	MUST(!mlx5dv_devx_obj_destroy(a.obj) && !mlx5dv_devx_obj_destroy(b.obj), "DESTROY_QP");
	MUST(!mlx5dv_devx_obj_destroy(cq.obj), "DESTROY_CQ");
	MUST(!ibv_dereg_mr(src) && !ibv_dereg_mr(dst) && !ibv_close_device(ctx), "close");
	puts("end");
	return 0;
}
