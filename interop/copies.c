/* A driver of a GPU that there is not: what the preloaded object asks of CUDA's, of memory of the host. The heap is the
 * GPU's memory, and each copy of it is counted. Loaded under the driver's name by a program that has its queues there. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_ORDINAL = 9, DEVICE = 2, INVALID = 1 };

unsigned long copies_made;
static uintptr_t heap;

__attribute__((constructor)) static void find_heap(void)
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps))
		if (strstr(line, "[heap]"))
			heap = strtoul(line, NULL, 16);
	if (!maps || !heap)
		abort();
	fclose(maps);
}

int cuPointerGetAttribute(void *value, int which, uint64_t at)
{
	if (at < heap || at >= (uintptr_t)sbrk(0))
		return INVALID;
	switch (which) {
	case CONTEXT:
		*(uint64_t *)value = 1;
		return 0;
	case MEMORY_TYPE:
		*(uint32_t *)value = DEVICE;
		return 0;
	case DEVICE_ORDINAL:
		*(int *)value = 0;
		return 0;
	}
	return INVALID;
}

int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDevicePrimaryCtxRetain(uint64_t *context, int device) { return *context = device + 1, 0; }
int cuCtxPushCurrent_v2(uint64_t context) { return context != 1; }
int cuCtxPopCurrent_v2(uint64_t *context) { return *context = 1, 0; }
int cuStreamCreate(uint64_t *stream, unsigned flags) { return *stream = 1 + flags, 0; }
int cuStreamQuery(uint64_t stream) { return stream == 0; }
int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) { return (void)flags, !(*at = malloc(bytes)); }

/* Words at once, as the copy engine's. */
static int copied(void *to, const void *from, size_t bytes)
{
	copies_made++;
	if (bytes == 8)
		__atomic_store_n((uint64_t *)to, __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
	else if (bytes == 4)
		__atomic_store_n((uint32_t *)to, __atomic_load_n((const uint32_t *)from, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
	else
		memcpy(to, from, bytes);
	return 0;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, uint64_t stream)
{
	return (void)stream, copied(to, (const void *)from, bytes);
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, uint64_t stream)
{
	return (void)stream, copied((void *)to, from, bytes);
}
