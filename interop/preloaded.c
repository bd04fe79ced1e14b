/* A program of libibverbs and libmlx5 that does what programs should not, and what they rarely do.
 * It is run on software devices by tests/external/shim.rs: "preloaded CASE" ends with 0 when everything was
 * as the case says, and else with one line that names what was not.
 */
#include "preloaded.h" /* first: it says _GNU_SOURCE */

#include <pthread.h>

/* Operations of each kind carry their bytes, between queue pairs of one device. */
static void operations(void)
{
	struct pair p;
	open_pair(&p);
	uint64_t *words = (uint64_t *)p.mem, at = (uintptr_t)p.mem;
	words[0] = 0x1122334455667788;
	write_8(&p, 0, at, at + 800);
	CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS && words[100] == words[0]);
	post(&p, 1, IBV_WR_RDMA_READ, at + 1600, p.mr->lkey, at, p.mr->rkey);
	CHECK(completion(&p, 1, 5) == IBV_WC_SUCCESS && words[200] == words[0]);
	words[300] = 37;
	post(&p, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, at + 3200, p.mr->lkey, at + 2400, p.mr->rkey);
	CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS && words[400] == 37 && words[300] == 42);
	struct ibv_sge sge = { .addr = at + 4000, .length = 8, .lkey = p.mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(p.qp[1], &recv, &bad) == 0);
	post(&p, 0, IBV_WR_SEND, at, p.mr->lkey, 0, 0);
	CHECK(completion(&p, 1, 5) == IBV_WC_SUCCESS && words[500] == words[0]);
	CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(p.qp[0], &attr, IBV_QP_STATE | IBV_QP_CAP | IBV_QP_AV, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == p.qp[1]->qp_num);
	CHECK(attr.path_mtu == IBV_MTU_1024 && attr.timeout == 8 && attr.cap.max_recv_wr == 16);
	CHECK(memcmp(&attr.ah_attr.grh.dgid, &p.gid, 16) == 0);
	close_pair(&p);
}

/* What is destroyed while something uses it stays. */
static void order(void)
{
	struct pair p;
	open_pair(&p);
	REFUSED(ibv_dealloc_pd(p.pd), EBUSY);
	REFUSED(ibv_destroy_cq(p.cq[0]), EBUSY);
	REFUSED(ibv_destroy_comp_channel(p.channel), EBUSY);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(p.pd, &srq_attr);
	CHECK(srq);
	struct ibv_qp_init_attr attr = { .send_cq = p.cq[0], .recv_cq = p.cq[0], .srq = srq,
		.qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 4, .max_send_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(p.pd, &attr);
	CHECK(qp);
	REFUSED(ibv_destroy_srq(srq), EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0);
	write_8(&p, 0, (uintptr_t)p.mem, (uintptr_t)p.mem + 64);
	CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS);
	close_pair(&p);
}

/* Memory that is not there, or not for that, is not registered. */
static void registration(void)
{
	struct pair p;
	open_pair(&p);
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	uint8_t *gone = mmap(NULL, 3 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(gone != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(p.pd, gone, 3 * PAGE, 0);
	CHECK(mr && ibv_dereg_mr(mr) == 0);
	NONE(ibv_reg_mr(p.pd, gone, 3 * PAGE, all), EFAULT);
	munmap(gone + PAGE, PAGE);
	NONE(ibv_reg_mr(p.pd, gone, 3 * PAGE, 0), EFAULT);
	NONE(ibv_reg_mr(p.pd, NULL, PAGE, 0), EFAULT);
	NONE(ibv_reg_mr(p.pd, p.mem, 0, 0), EINVAL);
	NONE(ibv_reg_mr(p.pd, p.mem, PAGE, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NONE(ibv_reg_mr(p.pd, p.mem, PAGE, 1 << 8), EOPNOTSUPP);
	close_pair(&p);
}

/* Keys and memory that are gone end the queue pair with an error, and nothing else. */
static void gone(void)
{
	struct ibv_async_event event;
	struct pair p;
	for (int which = 0; which < 4; which++) {
		open_pair(&p);
		uint64_t at = (uintptr_t)p.mem;
		uint32_t lkey = p.mr->lkey, rkey = p.mr->rkey;
		int want = IBV_WC_LOC_PROT_ERR;
		p.mem[2 * PAGE] = 9;
		switch (which) {
		case 0: /* the key at home */
			CHECK(ibv_dereg_mr(p.mr) == 0);
			p.mr = NULL;
			post(&p, 0, IBV_WR_RDMA_WRITE, at, lkey, at + 2 * PAGE, rkey);
			break;
		case 1: /* the peer's key */
			post(&p, 0, IBV_WR_RDMA_WRITE, at, lkey, at + 2 * PAGE, rkey + 1);
			want = IBV_WC_REM_ACCESS_ERR;
			break;
		case 2: /* the memory at home */
			munmap(p.mem, PAGE);
			post(&p, 0, IBV_WR_RDMA_WRITE, at, lkey, at + 2 * PAGE, rkey);
			break;
		default: /* the peer's memory */
			mprotect(p.mem + PAGE, PAGE, PROT_READ);
			post(&p, 0, IBV_WR_RDMA_WRITE, at, lkey, at + PAGE, rkey);
			want = IBV_WC_REM_ACCESS_ERR;
		}
		int status = completion(&p, 0, 5);
		if (status != want) {
			fprintf(stderr, "case %d: status %d instead of %d\n", which, status, want);
			exit(1);
		}
		CHECK(p.mem[2 * PAGE] == 9 && p.mem[PAGE] == 0);
		if (which == 1)
			CHECK(async_event(&p, 5, &event) == IBV_EVENT_QP_ACCESS_ERR &&
			      event.element.qp == p.qp[1]);
		/* Work that comes later is flushed. */
		post(&p, 0, IBV_WR_RDMA_WRITE, at, lkey, at, rkey);
		CHECK(completion(&p, 0, 5) == IBV_WC_WR_FLUSH_ERR);
		close_pair(&p);
	}
}

/* A WQE and a doorbell record are not a doorbell, nor is one that rings elsewhere, or for nobody. */
static void doorbell(void)
{
	struct pair p;
	open_pair(&p);
	uint64_t *words = (uint64_t *)p.mem;
	struct mlx5dv_qp dv = { .comp_mask = 0 };
	struct mlx5dv_obj obj = { .qp = { .in = p.qp[0], .out = &dv } };
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP) == 0);
	words[0] = 77;
	struct {
		struct mlx5_wqe_ctrl_seg ctrl;
		struct mlx5_wqe_raddr_seg raddr;
		struct mlx5_wqe_data_seg data;
	} wqe = { .raddr = { htobe64((uintptr_t)p.mem + 512), htobe32(p.mr->rkey), 0 },
		  .data = { htobe32(8), htobe32(p.mr->lkey), htobe64((uintptr_t)p.mem) } };
	mlx5dv_set_ctrl_seg(&wqe.ctrl, 0, MLX5_OPCODE_RDMA_WRITE, 0, p.qp[0]->qp_num,
			    MLX5_WQE_CTRL_CQ_UPDATE, 3, 0, 0);
	memcpy(dv.sq.buf, &wqe, sizeof wqe);
	__atomic_store_n(&dv.dbrec[MLX5_SND_DBR], htobe32(1), __ATOMIC_RELEASE);
	usleep(300000);
	CHECK(words[64] == 0);
	uint64_t bell, nobody;
	memcpy(&bell, &wqe, sizeof bell);
	struct mlx5dv_devx_uar *other = mlx5dv_devx_alloc_uar(p.ctx, MLX5DV_UAR_ALLOC_TYPE_BF);
	CHECK(other && other->base_addr != (void *)((uintptr_t)dv.bf.reg & -(uintptr_t)PAGE));
	__atomic_store_n((uint64_t *)other->reg_addr, bell, __ATOMIC_RELEASE);
	usleep(100000);
	CHECK(words[64] == 0);
	mlx5dv_devx_free_uar(other);
	/* Whoever rings, the page's queue pairs are looked at: this one has work by its record. */
	mlx5dv_set_ctrl_seg(&wqe.ctrl, 0, MLX5_OPCODE_RDMA_WRITE, 0, 0xffffff, 0, 3, 0, 0);
	memcpy(&nobody, &wqe, sizeof nobody);
	__atomic_store_n((uint64_t *)dv.bf.reg, nobody, __ATOMIC_RELEASE);
	for (double until = now() + 5; words[64] == 0 && now() < until;)
		usleep(50);
	CHECK(*(volatile uint64_t *)&words[64] == 77);
	close_pair(&p);
}

/* Device memory: what the program writes there goes out, what comes in it reads. */
static void device_memory(void)
{
	struct pair p;
	open_pair(&p);
	struct ibv_device_attr_ex device;
	CHECK(ibv_query_device_ex(p.ctx, NULL, &device) == 0 && device.max_dm_size >= 65536);
	struct ibv_alloc_dm_attr much = { .length = device.max_dm_size + 1 };
	CHECK(ibv_alloc_dm(p.ctx, &much) == NULL);
	struct ibv_alloc_dm_attr attr = { .length = 6000, .log_align_req = 6 };
	struct ibv_dm *dm = ibv_alloc_dm(p.ctx, &attr), *other = ibv_alloc_dm(p.ctx, &attr);
	CHECK(dm && other);
	struct ibv_mr *mr = ibv_reg_dm_mr(p.pd, dm, 4096, 1024,
					  IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE |
					  IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	NONE(ibv_reg_dm_mr(p.pd, dm, 5000, 1024, IBV_ACCESS_ZERO_BASED), EINVAL);
	uint64_t words[2] = { 0xfeedface, 0 };
	CHECK(ibv_memcpy_to_dm(dm, 4096 + 16, words, 8) == 0);
	post(&p, 0, IBV_WR_RDMA_WRITE, 16, mr->lkey, (uintptr_t)p.mem, p.mr->rkey);
	CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS && *(uint64_t *)p.mem == 0xfeedface);
	*(uint64_t *)p.mem = 0xdeadbeef;
	post(&p, 0, IBV_WR_RDMA_WRITE, (uintptr_t)p.mem, p.mr->lkey, 1016, mr->rkey);
	CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS);
	CHECK(ibv_memcpy_from_dm(words, dm, 4096 + 1016, 8) == 0 && words[0] == 0xdeadbeef);
	CHECK(ibv_memcpy_from_dm(words, other, 4096 + 1016, 8) == 0 && words[0] == 0);
	REFUSED(ibv_free_dm(dm), EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_free_dm(dm) == 0 && ibv_free_dm(other) == 0);
	close_pair(&p);
}

/* What may change while it is in use: a region, a completion queue, a memory window. */
static void changes(void)
{
	struct pair p;
	open_pair(&p);
	uint64_t *words = (uint64_t *)p.mem, at = (uintptr_t)p.mem;
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND;
	struct ibv_mr *mr = ibv_reg_mr(p.pd, p.mem + PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	uint32_t rkey = mr->rkey;
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)8, PAGE, 0) != 0);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, NULL,
			   p.mem + 2 * PAGE, PAGE, all) == 0);
	CHECK(mr->rkey == rkey);
	/* Completions that wait are there in the new queue; so are later ones. */
	words[0] = 1;
	for (int i = 0; i < 8; i++)
		post(&p, 0, IBV_WR_RDMA_WRITE, at, p.mr->lkey, at + 2 * PAGE + 8 * i, rkey);
	usleep(100000);
	CHECK(ibv_resize_cq(p.cq[0], 500) == 0 && p.cq[0]->cqe >= 500);
	for (int i = 0; i < 8; i++)
		CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS && words[2 * PAGE / 8 + i] == 1);
	for (int i = 0; i < 3; i++) {
		post(&p, 0, IBV_WR_RDMA_WRITE, at, p.mr->lkey, at + 2 * PAGE + 64, rkey);
		CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS);
	}
	/* A window of the peer's lets in what it covers, and nothing else. */
	struct ibv_mw *mw = ibv_alloc_mw(p.pd, IBV_MW_TYPE_1);
	CHECK(mw);
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED, .bind_info = {
		.mr = mr, .addr = at + 2 * PAGE + 512, .length = 512,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	CHECK(ibv_bind_mw(p.qp[1], mw, &bind) == 0);
	CHECK(completion(&p, 1, 5) == IBV_WC_SUCCESS);
	post(&p, 0, IBV_WR_RDMA_WRITE, at, p.mr->lkey, at + 2 * PAGE + 512, mw->rkey);
	CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS && words[(2 * PAGE + 512) / 8] == 1);
	post(&p, 0, IBV_WR_RDMA_WRITE, at, p.mr->lkey, at + 2 * PAGE + 1024, mw->rkey);
	CHECK(completion(&p, 0, 5) == IBV_WC_REM_ACCESS_ERR && words[(2 * PAGE + 1024) / 8] == 0);
	CHECK(ibv_dealloc_mw(mw) == 0 && ibv_dereg_mr(mr) == 0);
	close_pair(&p);
}

/* Completion events: one for each arming, and none of a CQ that is gone. */
static void events(void)
{
	struct pair p;
	open_pair(&p);
	uint64_t at = (uintptr_t)p.mem;
	struct pollfd fd = { .fd = p.channel->fd, .events = POLLIN };
	write_8(&p, 0, at, at + 64);
	CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS && poll(&fd, 1, 100) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_req_notify_cq(p.cq[i], 0) == 0);
	write_8(&p, 0, at, at + 64);
	write_8(&p, 0, at, at + 64);
	write_8(&p, 1, at, at + 64);
	struct ibv_cq *cq;
	void *ctx;
	CHECK(ibv_get_cq_event(p.channel, &cq, &ctx) == 0);
	ibv_ack_cq_events(cq, 1);
	/* The other CQ's event stays unread: destroying the CQ must not wait for it. */
	usleep(200000);
	CHECK(poll(&fd, 1, 0) == 1);
	close_pair(&p);
}

/* Commands that are not there, and commands that are wrong. */
static void commands(void)
{
	struct ibv_context *ctx = open_device();
	struct { uint16_t length, object, method, attrs; uint64_t zero; uint32_t driver, zero2;
		 struct { uint16_t id, len, flags, data; uint64_t value; } attr[2]; } c;
	unsigned long verbs = _IOWR(0x1b, 1, uint64_t[3]);
	memset(&c, 0, sizeof c);
	c.length = 24;
	REFUSED(ioctl(ctx->cmd_fd, _IO(0x1b, 9), &c), ENOTTY);
	REFUSED(ioctl(ctx->cmd_fd, verbs, NULL), EFAULT);
	REFUSED(ioctl(ctx->cmd_fd, verbs, (void *)8), EFAULT);
	c.object = 77;
	REFUSED(ioctl(ctx->cmd_fd, verbs, &c), EPROTONOSUPPORT);
	c.object = 1, c.length = 23;
	REFUSED(ioctl(ctx->cmd_fd, verbs, &c), EINVAL);
	c.length = 24, c.attrs = 0xffff;
	REFUSED(ioctl(ctx->cmd_fd, verbs, &c), EINVAL);
	c.length = 40, c.attrs = 1;
	REFUSED(ioctl(ctx->cmd_fd, verbs, &c), ENOENT); /* PD 0 */
	c.attr[0].id = 55, c.attr[0].flags = 1;
	REFUSED(ioctl(ctx->cmd_fd, verbs, &c), EPROTONOSUPPORT);
	/* A response that cannot be written leaves nothing behind: GET of a PD, to nowhere. */
	c.object = 0, c.method = 0, c.attrs = 2, c.length = 56;
	c.attr[0].id = 2, c.attr[0].len = 8, c.attr[0].value = 3; /* ALLOC_PD */
	uint64_t in = 0;
	c.attr[1].id = 0, c.attr[1].len = 8, c.attr[1].value = in;
	CHECK(ioctl(ctx->cmd_fd, verbs, &c) == 0);
	/* Anything that was made by hand goes with the context. */
	CHECK(ibv_close_device(ctx) == 0);
	struct pair p;
	open_pair(&p);
	close_pair(&p);
}

/* A child of a fork has no device, and may open its own; its parent does not notice. */
static void forks(void)
{
	struct pair p, own;
	struct ibv_port_attr port;
	struct stat st;
	open_pair(&p);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct ibv_wc wc;
		CHECK(ibv_poll_cq(p.cq[0], 1, &wc) == 0);
		REFUSED(ibv_query_port(p.ctx, 1, &port), EIO);
		CHECK(fstat(p.ctx->cmd_fd, &st) == 0 && S_ISCHR(st.st_mode));
		NONE(ibv_reg_mr(p.pd, p.mem, PAGE, 0), EIO);
		/* Over UDP at the parent's address: its packets go by the parent's engine, which may wait for a core. */
		patience = 16;
		open_pair(&own);
		write_8(&own, 0, (uintptr_t)own.mem, (uintptr_t)own.mem + 64);
		CHECK(completion(&own, 0, 5) == IBV_WC_SUCCESS);
		close_pair(&own);
		exit(0);
	}
	int status;
	write_8(&p, 0, (uintptr_t)p.mem, (uintptr_t)p.mem + 64);
	CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	write_8(&p, 0, (uintptr_t)p.mem, (uintptr_t)p.mem + 64);
	CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS);
	close_pair(&p);
}

/* Descriptors that were doubled keep the device open, until the last is closed. */
static void doubled(void)
{
	struct ibv_context *ctx = open_device();
	int fd = dup(ctx->cmd_fd);
	CHECK(fd >= 0);
	struct ibv_context *imported = ibv_import_device(fd);
	CHECK(imported);
	struct ibv_pd *pd = ibv_alloc_pd(imported);
	CHECK(pd && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(ctx) == 0);
	CHECK((pd = ibv_alloc_pd(imported)) && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(imported) == 0);
}

static long statm(void)
{
	long all = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%ld %ld", &all, &resident) == 2);
	fclose(f);
	return resident;
}

static int descriptors(void)
{
	int fd = dup(0);
	CHECK(fd >= 0);
	close(fd);
	return fd;
}

/* Pages of the device's file that this process has mapped, the object's own mappings among them. */
static int mappings(void)
{
	char line[512];
	int n = 0;
	FILE *f = fopen("/proc/self/maps", "r");
	CHECK(f);
	while (fgets(line, sizeof line, f))
		n += strstr(line, "bellpush-uverbs") != NULL;
	fclose(f);
	return n;
}

/* Opening and closing leaves nothing behind. */
static void cycles(int n)
{
	struct pair p;
	long memory = 0;
	int fds = 0, mapped = 0;
	struct ibv_context *keep = open_device();
	for (int i = 0; i < n; i++) {
		if (i == n / 10) {
			memory = statm();
			fds = descriptors();
			mapped = mappings();
		}
		open_pair(&p);
		write_8(&p, 0, (uintptr_t)p.mem, (uintptr_t)p.mem + 64);
		if (i % 2)
			CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS);
		close_pair(&p);
	}
	long grown = statm() - memory;
	CHECK(descriptors() == fds);
	CHECK(mappings() == mapped);
	if (grown > 512) {
		fprintf(stderr, "%ld pages more after %d cycles\n", grown, n);
		exit(1);
	}
	CHECK(ibv_close_device(keep) == 0);
}

static void *opens_and_closes(void *unused)
{
	(void)unused;
	for (int i = 0; i < 100; i++)
		CHECK(ibv_close_device(open_device()) == 0);
	return NULL;
}

/* A device that one thread closes is there for another that opens it meanwhile. */
static void reopened(void)
{
	pthread_t thread[2];
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&thread[i], NULL, opens_and_closes, NULL) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
}

/* Has another process cut a file off. */
static void cut_file(int fd, off_t bytes)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(ftruncate(fd, bytes) != 0);
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A region's file that another process cuts off is an error of the access; also where the thread blocks SIGBUS, and
 * nothing is caught. */
static void cut(void)
{
	static const struct {
		enum ibv_wr_opcode op;
		int is_at_home, want;
	} accesses[] = {
		{ IBV_WR_RDMA_WRITE, 1, IBV_WC_LOC_PROT_ERR },
		{ IBV_WR_RDMA_WRITE, 0, IBV_WC_REM_ACCESS_ERR },
		{ IBV_WR_RDMA_READ, 1, IBV_WC_LOC_PROT_ERR },
		{ IBV_WR_RDMA_READ, 0, IBV_WC_REM_ACCESS_ERR },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, 0, IBV_WC_REM_OP_ERR },
	};
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGBUS);
	for (int blocked = 0; blocked < 2; blocked++) {
		CHECK(pthread_sigmask(blocked ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL) == 0);
		for (size_t i = 0; i < sizeof accesses / sizeof accesses[0]; i++) {
			struct pair p;
			open_pair(&p);
			FILE *file = tmpfile();
			CHECK(file && ftruncate(fileno(file), 2 * PAGE) == 0);
			uint8_t *mem = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
			CHECK(mem != MAP_FAILED);
			memset(mem, 1, 2 * PAGE);
			struct ibv_mr *mr = ibv_reg_mr(p.pd, mem, 2 * PAGE, all);
			CHECK(mr);
			cut_file(fileno(file), PAGE);
			uint64_t there = (uintptr_t)mem + PAGE + 64, own = (uintptr_t)p.mem;
			if (accesses[i].is_at_home)
				post(&p, 0, accesses[i].op, there, mr->lkey, own, p.mr->rkey);
			else
				post(&p, 0, accesses[i].op, own, p.mr->lkey, there, mr->rkey);
			int status = completion(&p, 0, 5);
			if (status != accesses[i].want) {
				fprintf(stderr, "access %zu, blocked %d: status %d\n", i, blocked, status);
				exit(1);
			}
			CHECK(mem[PAGE - 1] == 1 && ibv_dereg_mr(mr) == 0 && munmap(mem, 2 * PAGE) == 0);
			fclose(file);
			close_pair(&p);
		}
	}
}

static volatile int is_over;

/* Gives a CQ ever other sizes; how often. Each resize takes an entry, which libmlx5 gives back with the next poll: a few
 * in a row may find the CQ full. */
static void *resizes(void *cq)
{
	static long count;
	for (unsigned i = 0; !is_over; i++) {
		count += ibv_resize_cq(cq, 20 + i * 37 % 400) == 0;
		usleep(i % 64);
	}
	return &count;
}

/* Completions come once each and in order while another thread resizes the CQ. */
static void resized(void)
{
	enum { OUTSTANDING = 8 };
	struct pair p;
	pthread_t thread;
	uint64_t posted = 0, done = 0;
	open_pair(&p);
	CHECK(pthread_create(&thread, NULL, resizes, p.cq[0]) == 0);
	for (double until = now() + 3, stuck = now() + 10; done < posted || now() < until;) {
		struct ibv_sge sge = { .addr = (uintptr_t)p.mem, .length = 8, .lkey = p.mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					  .send_flags = IBV_SEND_SIGNALED, .wr_id = posted }, *bad;
		wr.wr.rdma.remote_addr = (uintptr_t)p.mem + 64;
		wr.wr.rdma.rkey = p.mr->rkey;
		for (; posted < done + OUTSTANDING && now() < until; wr.wr_id = ++posted)
			CHECK(ibv_post_send(p.qp[0], &wr, &bad) == 0);
		struct ibv_wc wc[OUTSTANDING];
		int n = ibv_poll_cq(p.cq[0], OUTSTANDING, wc);
		CHECK(n >= 0);
		for (int i = 0; i < n; i++, done++)
			CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id == done);
		CHECK(now() < stuck);
	}
	is_over = 1;
	void *count;
	struct ibv_wc wc;
	CHECK(pthread_join(thread, &count) == 0 && *(long *)count > 100 && done > 1000);
	CHECK(ibv_poll_cq(p.cq[0], 1, &wc) == 0);
	close_pair(&p);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "operations", operations }, { "order", order }, { "registration", registration },
		{ "gone", gone }, { "doorbell", doorbell }, { "device_memory", device_memory },
		{ "events", events }, { "commands", commands }, { "forks", forks },
		{ "doubled", doubled }, { "changes", changes }, { "reopened", reopened },
		{ "cut", cut }, { "resized", resized },
	};
	if (argc == 3 && strcmp(argv[1], "cycles") == 0) {
		cycles(atoi(argv[2]));
		return 0;
	}
	return run_case(cases, sizeof cases / sizeof cases[0], argc, argv);
}
