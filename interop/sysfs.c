/* What programs find of a device in sysfs, by all of libc's functions that take a path. Also with what
 * _FORTIFY_SOURCE makes of them. */
#define _GNU_SOURCE
#define _FORTIFY_SOURCE 2
#include <dirent.h>
#include <limits.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>

#include "preloaded.h"

#define IB "/sys/class/infiniband/mlx5_0"
#define PCI "/sys/devices/pcibe11:00/be11:00:00.0/be11:01:00.0"

/* A length that the compiler does not know. */
static volatile size_t unknown = PATH_MAX;

static const char *line_of(const char *path)
{
	static char line[256];
	FILE *f = fopen(path, "r");
	if (!f)
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
	CHECK(f && fgets(line, sizeof line, f));
	fclose(f);
	line[strcspn(line, "\n")] = 0;
	return line;
}

#define SAYS(path, text) do { if (strcmp(line_of(path), text)) { \
	fprintf(stderr, "%s says %s instead of %s\n", path, line_of(path), text); exit(1); } } while (0)

static void is_path(char *is, const char *want)
{
	if (!is || strcmp(is, want)) {
		fprintf(stderr, "%s instead of %s\n", is ? is : strerror(errno), want);
		exit(1);
	}
}

static int wanted(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

/* Each function finds the device's files, and what is not there. */
static void functions(void)
{
	char buf[PATH_MAX];
	struct dirent **list;
	is_path(realpath(IB, buf), PCI "/infiniband/mlx5_0");
	is_path(realpath(IB "/device", NULL), PCI);
	is_path(canonicalize_file_name("/sys/bus/pci/devices/be11:01:00.0"), PCI);
	NONE(realpath("/sys/class/infiniband/mlx5_9", buf), ENOENT);
	is_path(realpath("/dev/../dev/null", buf), "/dev/null");
	CHECK(scandir("/sys/class/infiniband", &list, wanted, alphasort) == 1);
	CHECK(strcmp(list[0]->d_name, "mlx5_0") == 0);
	CHECK(faccessat(AT_FDCWD, IB "/node_guid", R_OK, 0) == 0);
	REFUSED(faccessat(AT_FDCWD, IB "/nothing", R_OK, 0), ENOENT);
	CHECK(euidaccess(IB "/node_guid", R_OK) == 0 && eaccess(IB "/node_guid", R_OK) == 0);
	ssize_t n = readlinkat(AT_FDCWD, IB "/device", buf, unknown);
	CHECK(n > 0 && strncmp(buf, "../../../be11:01:00.0", n) == 0);
	n = readlink("/sys/class/infiniband_verbs/uverbs0", buf, unknown);
	CHECK(n > 0 && strncmp(buf, "../../devices/pcibe11:00/", 25) == 0);
	CHECK(chdir("/sys/class/infiniband/mlx5_0/ports") == 0 && access("1/state", R_OK) == 0);
	is_path(realpath("1", NULL), PCI "/infiniband/mlx5_0/ports/1");
	/* By netlink (`NETLINK_RDMA`), libraries would find the machine's own devices. */
	REFUSED(socket(AF_NETLINK, SOCK_RAW, 20), EPROTONOSUPPORT);
	CHECK(socket(AF_NETLINK, SOCK_RAW, 0) >= 0);
}

/* The list of PCI functions, and all of it as hwloc finds it: from the root directory, opened. */
static void lists(void)
{
	struct dirent **own, **all;
	char buf[64];
	/* Of two names of a directory, only the usual one is looked at. */
	int n = scandir("/sys/bus/./pci/devices", &own, wanted, alphasort), found = 0;
	n = n < 0 ? 0 : n;
	int m = scandir("/sys/bus/pci/devices/", &all, wanted, alphasort);
	CHECK(m == n + 1);
	for (int i = 0; i < m; i++) {
		if (strcmp(all[i]->d_name, "be11:01:00.0") == 0)
			continue;
		CHECK(found < n && strcmp(all[i]->d_name, own[found++]->d_name) == 0);
		char path[PATH_MAX], *real;
		snprintf(path, sizeof path, "/sys/bus/pci/devices/%s", all[i]->d_name);
		CHECK((real = realpath(path, NULL)) && strncmp(real, "/sys/devices/", 13) == 0);
		int list = open("/sys/bus/pci/devices", O_RDONLY | O_DIRECTORY);
		snprintf(path, sizeof path, "%s/vendor", all[i]->d_name);
		CHECK(list >= 0 && faccessat(list, path, R_OK, 0) == 0);
		close(list);
	}
	int root = open("/", O_RDONLY | O_DIRECTORY), fd;
	CHECK(root >= 0);
	CHECK((fd = openat(root, "sys/bus/pci/devices/be11:01:00.0/vendor", O_RDONLY)) >= 0);
	CHECK(read(fd, buf, sizeof buf) == 7 && memcmp(buf, "0x15b3\n", 7) == 0);
	close(fd);
	/* As libpci reads it. */
	uint8_t config[64];
	CHECK((fd = open("/sys/bus/pci/devices/be11:01:00.0/config", O_RDONLY)) >= 0);
	CHECK(read(fd, config, sizeof config) == 64 && memcmp(config, "\xb3\x15\x21\x10", 4) == 0);
	CHECK(config[9] == 0 && config[10] == 7 && config[11] == 2);
	close(fd);
	struct stat status;
	CHECK(fstatat(root, "dev/infiniband/uverbs0", &status, 0) == 0 && S_ISCHR(status.st_mode));
	CHECK(readlinkat(root, "sys/class/infiniband/mlx5_0/device", buf, sizeof buf) > 0);
	CHECK(faccessat(root, "sys/class/infiniband/mlx5_0/node_guid", R_OK, 0) == 0);
	/* From elsewhere they are no such files. */
	int elsewhere = open("/proc", O_RDONLY | O_DIRECTORY);
	CHECK(elsewhere >= 0 && openat(elsewhere, "sys/class/infiniband/mlx5_0/node_guid", O_RDONLY) < 0);
	REFUSED(fstatat(elsewhere, "dev/infiniband/uverbs0", &status, 0), ENOENT);
	CHECK(chdir("/") == 0 && access("dev/infiniband/uverbs0", R_OK) == 0);
}

/* What each directory of a device is a device of, as NCCL asks: by the last name of the path. */
static void subsystems(void)
{
	char buf[PATH_MAX];
	is_path(realpath(IB "/device/subsystem", buf), "/sys/bus/pci");
	is_path(realpath(PCI "/../subsystem", NULL), "/sys/bus/pci");
	is_path(realpath(IB "/subsystem", NULL), "/sys/class/infiniband");
	is_path(realpath("/sys/class/infiniband_verbs/uverbs0/subsystem", NULL), "/sys/class/infiniband_verbs");
	ssize_t n = readlink(PCI "/subsystem", buf, unknown);
	CHECK(n == 19 && strncmp(buf, "../../../../bus/pci", n) == 0);
	SAYS(PCI "/subsystem/devices/be11:01:00.0/vendor", "0x15b3");
}

/* The device is a PCI function behind a bridge, with a slot and a port. */
static void layout(void)
{
	SAYS(IB "/device/vendor", "0x15b3");
	SAYS(IB "/device/class", "0x020700");
	SAYS(IB "/device/current_link_speed", "16.0 GT/s PCIe");
	SAYS(IB "/device/current_link_width", "16");
	SAYS(PCI "/max_link_speed", "16.0 GT/s PCIe");
	SAYS(PCI "/max_link_width", "16");
	SAYS("/sys/bus/pci/devices/be11:01:00.0/numa_node", "-1");
	SAYS(PCI "/../class", "0x060400");
	CHECK(strspn(line_of(IB "/device/local_cpus"), "0123456789abcdef,") > 7);
	CHECK(strncmp(line_of(IB "/device/local_cpulist"), "0-", 2) == 0);
	SAYS("/sys/class/infiniband_verbs/uverbs0/device/infiniband/mlx5_0/node_type", "1: CA");
	SAYS(IB "/ports/1/lid_mask_count", "0");
	SAYS(IB "/ports/1/sm_lid", "0x0");
	SAYS(IB "/ports/1/sm_sl", "0");
	SAYS(IB "/ports/1/cap_mask", "0x04000000");
	SAYS(IB "/ports/1/gid_attrs/ndevs/0", "lo");
	struct ibv_context *ctx = open_device();
	struct ibv_port_attr port;
	CHECK(ibv_query_port(ctx, 1, &port) == 0 && port.port_cap_flags == 0x04000000);
	CHECK(ibv_close_device(ctx) == 0);
}

/* The GID is nobody's before the device is opened for the first time, unless it was given, and is right after that,
 * also below a directory that was opened before. */
static void gid_of(struct ibv_context *ctx, char want[64])
{
	union ibv_gid gid;
	CHECK(ibv_query_gid(ctx, 1, 0, &gid) == 0);
	for (int i = 0; i < 16; i++)
		sprintf(want + i / 2 * 5 + i % 2 * 2, "%02x:", gid.raw[i]);
	want[39] = 0;
}

static void gids(void)
{
	char want[64], line[64] = "";
	int dir = open(IB "/ports/1", O_RDONLY | O_DIRECTORY);
	CHECK(dir >= 0);
	const char *given = getenv("GIVEN");
	SAYS(IB "/ports/1/gids/0", given ? given : "0000:0000:0000:0000:0000:0000:0000:0000");
	struct ibv_context *ctx = open_device();
	gid_of(ctx, want);
	CHECK(!given || strcmp(given, want) == 0);
	int file = openat(dir, "gids/0", O_RDONLY);
	CHECK(file >= 0 && read(file, line, sizeof line - 1) == 40);
	CHECK(strncmp(line, want, 39) == 0);
	SAYS(IB "/ports/1/gids/0", want);
	CHECK(ibv_close_device(ctx) == 0);
	SAYS(IB "/ports/1/gids/0", want);
}

/* Processes that look at the same time each see what is of their own. */
static void own(void)
{
	char want[64];
	pid_t child = fork();
	CHECK(child >= 0);
	struct ibv_context *ctx = open_device();
	gid_of(ctx, want);
	for (int i = 0; i < 2000; i++)
		SAYS(IB "/ports/1/gids/0", want);
	CHECK(ibv_close_device(ctx) == 0);
	int status;
	CHECK(child == 0 || (waitpid(child, &status, 0) == child && status == 0));
}

/* What the files and the library say of the port after an event. */
static void state_is(struct ibv_context *ctx, enum ibv_event_type event, int up)
{
	struct ibv_async_event came;
	struct ibv_port_attr port;
	struct pollfd fd = { .fd = ctx->async_fd, .events = POLLIN };
	CHECK(poll(&fd, 1, 5000) == 1 && ibv_get_async_event(ctx, &came) == 0);
	ibv_ack_async_event(&came);
	if (came.event_type != event) {
		fprintf(stderr, "%s\n", ibv_event_type_str(came.event_type));
		exit(1);
	}
	CHECK(ibv_query_port(ctx, 1, &port) == 0);
	CHECK(port.state == (up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN) && port.phys_state == (up ? 5 : 3));
	SAYS(IB "/ports/1/state", up ? "4: ACTIVE" : "1: DOWN");
	SAYS(IB "/ports/1/phys_state", up ? "5: LinkUp" : "3: Disabled");
}

/* The port's state is in the files what it is; a script has it go down, come back, and go with the device. */
static void states(void)
{
	SAYS(IB "/ports/1/state", "4: ACTIVE");
	struct ibv_context *ctx = open_device();
	state_is(ctx, IBV_EVENT_PORT_ERR, 0);
	state_is(ctx, IBV_EVENT_PORT_ACTIVE, 1);
	state_is(ctx, IBV_EVENT_DEVICE_FATAL, 0);
	CHECK(ibv_close_device(ctx) == 0);
	SAYS(IB "/ports/1/state", "4: ACTIVE");
	SAYS(IB "/ports/1/phys_state", "5: LinkUp");
}

static void is_device(const char *path)
{
	struct stat stat_is;
	struct statx is;
	CHECK(stat(path, &stat_is) == 0 && S_ISCHR(stat_is.st_mode));
	CHECK(statx(AT_FDCWD, path, 0, STATX_ALL, &is) == 0 && is.stx_mode == stat_is.st_mode && is.stx_size == 0);
	CHECK(makedev(is.stx_rdev_major, is.stx_rdev_minor) == stat_is.st_rdev);
	int fd = open(path, O_RDWR);
	CHECK(fd >= 0 && statx(fd, "", AT_EMPTY_PATH, STATX_ALL, &is) == 0 && fstat(fd, &stat_is) == 0);
	CHECK(is.stx_mode == stat_is.st_mode && S_ISCHR(is.stx_mode));
	CHECK(makedev(is.stx_rdev_major, is.stx_rdev_minor) == stat_is.st_rdev);
	close(fd);
}

/* The same by each way to ask. */
static void statuses(void)
{
	struct stat is;
	is_device("/dev/infiniband/uverbs0");
	is_device("/dev/infiniband/rdma_cm");
	REFUSED(stat("/dev/infiniband/uverbs99", &is), ENOENT);
	REFUSED(stat("/sys/class/infiniband/mlx5_7/ports/1/state", &is), ENOENT);
	int fd = open("/dev/infiniband/uverbs0", O_RDWR);
	CHECK(fd >= 0 && fstatat(fd, "", &is, AT_EMPTY_PATH) == 0 && S_ISCHR(is.st_mode));
	close(fd);
	CHECK(chdir("/proc") == 0 && fstatat(AT_FDCWD, "", &is, AT_EMPTY_PATH) == 0 && S_ISDIR(is.st_mode));
	struct statx other;
	CHECK(statx(AT_FDCWD, "/sys/class/infiniband", 0, STATX_ALL, &other) == 0 && S_ISDIR(other.stx_mode));
}

/* The child of a process that has ended, and taken its files along; then as another user. Who reads its line waits. */
static void orphans(void)
{
	struct stat is;
	pid_t parent = getpid(), child = fork();
	CHECK(child >= 0);
	if (child > 0)
		return;
	for (double until = now() + 10; getppid() == parent; usleep(1000))
		CHECK(now() < until);
	usleep(300000);
	CHECK(stat("/sys/bus/pci/devices", &is) == 0);
	CHECK(stat("/sys/class/infiniband", &is) == 0);
	if (getuid() == 0) {
		CHECK(setgid(65534) == 0 && setuid(65534) == 0);
		CHECK(stat("/sys/bus/pci/devices", &is) == 0 && opendir("/sys/bus/pci/devices"));
	}
	puts("found");
	exit(0);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "functions", functions }, { "lists", lists }, { "subsystems", subsystems }, { "layout", layout },
		{ "gids", gids }, { "own", own }, { "states", states }, { "statuses", statuses },
		{ "orphans", orphans },
	};
	return run_case(cases, sizeof cases / sizeof cases[0], argc, argv);
}
