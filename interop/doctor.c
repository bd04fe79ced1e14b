/* Preloaded before everything else, makes a machine worse than it is; tests/endpoint/mlx5.rs looks how that is
 * told. DOCTOR says how: "permission" (nobody may open a device), "library" (there is no libmlx5),
 * "cqe" (the card writes CQEs of version 0), "atomics" (it has none). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/rdma_user_ioctl.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static int doctor(const char *how)
{
	const char *what = getenv("DOCTOR");
	return what && !strcmp(what, how);
}

static int refused(const char *path)
{
	/* libibverbs tries the device's number as well, which leads to the same node. */
	static const char nodes[] = "/dev/infiniband/uverbs", numbers[] = "/dev/char/";
	int node = !strncmp(path, nodes, strlen(nodes)) || !strncmp(path, numbers, strlen(numbers));
	if (!node || !doctor("permission"))
		return 0;
	errno = EACCES;
	return 1;
}

#define OPEN(name)                                                              \
	int name(const char *path, int flags, ...)                              \
	{                                                                       \
		va_list arguments;                                              \
		va_start(arguments, flags);                                     \
		mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0; \
		va_end(arguments);                                              \
		int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, #name);  \
		return refused(path) ? -1 : next(path, flags, mode);            \
	}
OPEN(open)
OPEN(open64)

void *dlopen(const char *name, int flags)
{
	void *(*next)(const char *, int) = dlsym(RTLD_NEXT, "dlopen");
	int gone = name && strstr(name, "libmlx5") && doctor("library");
	return next(gone ? "/nowhere/libmlx5.so.1" : name, flags);
}

/* In the answer to EX_QUERY_DEVICE, whose number is in the attribute WRITE_CMD. */
static void no_atomics(struct ib_uverbs_ioctl_hdr *command)
{
	struct ib_uverbs_ex_query_device_resp *answer = NULL;
	int asked = 0;
	for (int i = 0; i < command->num_attrs; i++) {
		struct ib_uverbs_attr *attr = &command->attrs[i];
		if (attr->attr_id == UVERBS_ATTR_WRITE_CMD)
			asked = attr->data == (IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_QUERY_DEVICE);
		if (attr->attr_id == UVERBS_ATTR_CORE_OUT)
			answer = (void *)(uintptr_t)attr->data;
	}
	if (asked && answer)
		answer->base.atomic_cap = 0; /* IBV_ATOMIC_NONE */
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	va_start(arguments, request);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	int (*next)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
	int done = next(fd, request, argument);
	struct ib_uverbs_ioctl_hdr *command = argument;
	if (done || request != RDMA_VERBS_IOCTL || command->object_id != UVERBS_OBJECT_DEVICE)
		return done;
	if (doctor("atomics") && command->method_id == UVERBS_METHOD_INVOKE_WRITE)
		no_atomics(command);
	if (!doctor("cqe") || command->method_id != UVERBS_METHOD_GET_CONTEXT)
		return done;
	for (int i = 0; i < command->num_attrs; i++) {
		struct mlx5_ib_alloc_ucontext_resp *answer = (void *)(uintptr_t)command->attrs[i].data;
		if (command->attrs[i].attr_id == UVERBS_ATTR_UHW_OUT)
			answer->cqe_version = 0;
	}
	return done;
}
