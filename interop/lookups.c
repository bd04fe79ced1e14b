/* Functions that a program looks up by name: the driver's cuMemHostRegister, of a driver that is this program itself.
 * As the CUDA runtime does it: dlsym of cuGetProcAddress_v2, and by that everything else. And libc's own, to be patched.
 */
#include "preloaded.h"
#include <dlfcn.h>
#include <sys/syscall.h>

enum { PORTABLE = 1, MAPPED = 2, IO_MEMORY = 4, NOT_FOUND = 500 };

typedef int (*proc_address)(const char *, void **, int, uint64_t, int *);
typedef int (*host_register)(void *, size_t, unsigned);

static unsigned registered_with;

static int registers(void *at, size_t bytes, unsigned flags)
{
	(void)at, (void)bytes;
	registered_with = flags;
	return 0;
}

static int unregisters(void *at)
{
	return at == NULL;
}

int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status)
{
	(void)version, (void)flags;
	*found = strcmp(symbol, "cuMemHostRegister") == 0     ? (void *)registers
		 : strcmp(symbol, "cuMemHostUnregister") == 0 ? (void *)unregisters
		 : strcmp(symbol, "cuGetProcAddress") == 0    ? (void *)cuGetProcAddress_v2
							      : NULL;
	if (status)
		*status = *found == NULL;
	return *found ? 0 : NOT_FOUND;
}

static void a_uar_is_memory(proc_address find)
{
	int n, status = 7;
	void *found = NULL;
	CHECK(find("cuMemHostRegister", &found, 13000, 0, &status) == 0 && found && status == 0);
	host_register reg = (host_register)found;
	CHECK(find("cuMemHostUnregister", &found, 13000, 0, NULL) == 0 && found == (void *)unregisters);
	CHECK(find("cuNothing", &found, 13000, 0, NULL) == NOT_FOUND);

	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n > 0);
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_context *ctx = mlx5dv_open_device(list[0], &attr);
	CHECK(ctx);
	ibv_free_device_list(list);
	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(ctx, MLX5DV_UAR_ALLOC_TYPE_BF);
	CHECK(uar);
	const unsigned all = PORTABLE | MAPPED | IO_MEMORY;
	CHECK(reg(uar->reg_addr, 512, all) == 0 && registered_with == (PORTABLE | MAPPED));
	CHECK(reg(uar->reg_addr, 512, PORTABLE) == 0 && registered_with == PORTABLE);
	/* What is not the device's, in part or whole, is the driver's to judge; and so is nonsense. */
	CHECK(reg(uar->reg_addr, (size_t)1 << 40, all) == 0 && registered_with == all);
	CHECK(reg(uar->reg_addr, SIZE_MAX, all) == 0 && registered_with == all);
	CHECK(reg(&status, sizeof status, all) == 0 && registered_with == all);
	CHECK(reg(NULL, 0, all) == 0 && registered_with == all);
	mlx5dv_devx_free_uar(uar);
	CHECK(ibv_close_device(ctx) == 0);
}

static void driver(void)
{
	proc_address find = (proc_address)dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2");
	CHECK(find && find != cuGetProcAddress_v2);
	a_uar_is_memory(find);
	/* The runtime may ask it for itself. */
	void *again = NULL;
	CHECK(find("cuGetProcAddress", &again, 13000, 0, NULL) == 0);
	a_uar_is_memory((proc_address)again);
}

/* All else is what it was, also where it depends on who asks. */
static void others(void)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW);
	CHECK(libc && dlsym(libc, "malloc") && dlsym(RTLD_NEXT, "malloc") == dlsym(libc, "malloc"));
	CHECK(dlsym(RTLD_DEFAULT, "others_too") == NULL && dlerror() != NULL && dlerror() == NULL);
	CHECK(dlsym(libc, "cuGetProcAddress_v2") == NULL);
	/* This program's own is not behind itself. */
	CHECK(dlsym(RTLD_NEXT, "cuGetProcAddress_v2") == NULL);
	CHECK(dlclose(libc) == 0);
}

#ifdef __x86_64__
/* Volatile: libc declares that its functions call nobody back. */
static volatile unsigned mapped, unmapped, moved;

static void *maps(void *at, size_t bytes, int rights, int flags, int fd, off_t offset)
{
	mapped++;
	return (void *)syscall(SYS_mmap, at, bytes, rights, flags, fd, offset);
}

static int unmaps(void *at, size_t bytes)
{
	unmapped++;
	return (int)syscall(SYS_munmap, at, bytes);
}

static void *moves(void *at, size_t bytes, size_t new_bytes, int flags, void *new_at)
{
	moved++;
	return (void *)syscall(SYS_mremap, at, bytes, new_bytes, flags, new_at);
}

/* libc's function jumps to another from now on. */
static void patch(void *libc, const char *name, void *to)
{
	uint8_t *at = dlsym(libc, name), jump[13] = { 0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3 };
	CHECK(at);
	memcpy(jump + 2, &to, sizeof to); /* movabs $to, %r11; jmp *%r11 */
	uint8_t *page = (uint8_t *)((uintptr_t)at & ~(uintptr_t)4095);
	CHECK(mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
	memcpy(at, jump, sizeof jump);
	CHECK(mprotect(page, 8192, PROT_READ | PROT_EXEC) == 0);
}

/* Who patches libc's functions, as UCX does to learn what becomes of registered memory, hears of this program's calls. */
static void patched(void)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW);
	CHECK(libc);
	patch(libc, "mmap", (void *)maps);
	patch(libc, "munmap", (void *)unmaps);
	patch(libc, "mremap", (void *)moves);
	int rights = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	mapped = unmapped = moved = 0;
	void *at = mmap(NULL, 4096, rights, flags, -1, 0);
	CHECK(at != MAP_FAILED && mapped == 1);
	at = mmap64(at, 4096, rights, flags | MAP_FIXED, -1, 0);
	CHECK(at != MAP_FAILED && mapped == 2);
	at = mremap(at, 4096, 8192, MREMAP_MAYMOVE);
	CHECK(at != MAP_FAILED && moved == 1);
	CHECK(munmap(at, 8192) == 0 && unmapped == 1);
}
#else
static void patched(void)
{
	puts("no jump for this processor");
}
#endif

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "driver", driver }, { "others", others }, { "patched", patched }
	};
	return run_case(cases, sizeof cases / sizeof cases[0], argc, argv);
}
