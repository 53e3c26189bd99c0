/* frame-sender - frames of 64 bytes from a device of one network namespace to that of another, counted there.
 *
 * usage: frame-sender flood|kernel-flood|bursts FROM TO DEVICE SECONDS IDLER
 *
 *   flood    sends as fast as it can, by a packet socket
 *   kernel-flood   the same for less CPU: the kernel makes the frames of a program that redirects them to the device (Linux 5.18). The
 *            device's other end needs GRO or an XDP program, else it takes none
 *   bursts   sends 32 frames, sleeps until the last one arrived, and sends the next ones
 *
 * FROM and TO are files of network namespaces; DEVICE has the same name in both. Frames are UDP over IPv4 from and to addresses that
 * neither namespace has, so the receiver's kernel counts them and drops them at once; a filter gives the last one of a burst to this
 * program. First one frame goes the other way, so that a switch learns where the receiver is, and single ones until ten in sequence
 * arrived. IDLER is a process that only takes time that nothing else wants. Queues fill for half of SECONDS, then it measures. Prints JSON:
 * frames that were sent and received in all, and of the measurement the frames received, its time in ns, and the CPU time of IDLER in it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
    FRAME_BYTES = 64,
    BURST = 32,
    KERNEL_FRAMES = 1 << 21, /* of a system call, which sends none for some 20 ms */
    KNOWN_AFTER = 10,
    MARK_AT = 42, /* the first byte behind UDP's header; 1 in the last frame of a burst */
    /* Frames that did not arrive for so long are lost. */
    PATIENCE_US = 500 * 1000,
};
/* A switch that is not ready by then will not be. */
static const int64_t START_NS = 15LL * 1000 * 1000 * 1000;

static const uint8_t SENDER[] = {2, 0, 0, 0, 0x40, 1}, RECEIVER[] = {2, 0, 0, 0, 0x40, 2};

struct end {
    int socket;  /* sends packets, and receives those with the mark */
    int devices; /* /proc/net/dev of its namespace */
};

static const char *device;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int64_t ns_of(clockid_t clock) {
    struct timespec now;
    if (clock_gettime(clock, &now)) fail("clock_gettime");
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int64_t now_ns(void) { return ns_of(CLOCK_MONOTONIC); }

static struct end opened(const char *namespace) {
    int place = open(namespace, O_RDONLY | O_CLOEXEC);
    if (place < 0 || setns(place, CLONE_NEWNET)) fail(namespace);
    close(place);
    /* It receives nothing before the filter is there: protocol 0. */
    struct end end = {.socket = socket(AF_PACKET, SOCK_RAW, 0), .devices = open("/proc/thread-self/net/dev", O_RDONLY)};
    struct sock_filter marked[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, MARK_AT),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, FRAME_BYTES),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog filter = {sizeof marked / sizeof *marked, marked};
    struct timeval patience = {.tv_usec = PATIENCE_US};
    struct sockaddr_ll here = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP), .sll_ifindex = if_nametoindex(device)};
    int on = 1;
    if (end.socket < 0 || end.devices < 0 || !here.sll_ifindex) fail(device);
    if (setsockopt(end.socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter)) fail("SO_ATTACH_FILTER");
    if (setsockopt(end.socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience)) fail("SO_RCVTIMEO");
    if (setsockopt(end.socket, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on)) fail("PACKET_QDISC_BYPASS");
    if (bind(end.socket, (void *)&here, sizeof here)) fail("bind");
    return end;
}

/* The frames that the device has received. */
static uint64_t received(const struct end *end) {
    char text[4096], name[IFNAMSIZ + 2];
    ssize_t len = pread(end->devices, text, sizeof text - 1, 0);
    if (len < 0) fail("/proc/net/dev");
    text[len] = 0;
    snprintf(name, sizeof name, "%s:", device);
    const char *line = strstr(text, name);
    uint64_t packets = 0;
    if (!line || sscanf(line + strlen(name), "%*u %lu", &packets) != 1) fail("no such device in /proc/net/dev");
    return packets;
}

static int bpf(int command, union bpf_attr *attributes) {
    int result = syscall(SYS_bpf, command, attributes, sizeof *attributes);
    if (result < 0) fail("bpf");
    return result;
}

/* A program for XDP that has the device send its frame. It belongs to the namespace of this thread. */
static int program(void) {
    struct bpf_insn code[] = {
        {BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_1, 0, 0, if_nametoindex(device)},
        {BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_2, 0, 0, 0},
        {BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect},
        {BPF_JMP | BPF_EXIT, 0, 0, 0, 0},
    };
    union bpf_attr load = {.prog_type = BPF_PROG_TYPE_XDP, .insn_cnt = sizeof code / sizeof *code};
    load.insns = (uintptr_t)code;
    load.license = (uintptr_t)"Apache-2.0";
    return bpf(BPF_PROG_LOAD, &load);
}

static uint16_t sum_of(const uint8_t *header, size_t len) {
    uint32_t sum = 0;
    for (size_t at = 0; at < len; at += 2) sum += header[at] << 8 | header[at + 1];
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return ~sum;
}

static void write_frame(uint8_t *frame, const uint8_t *to, const uint8_t *from, int is_marked) {
    static const uint8_t HEADERS[] = {
        8, 0,                                             /* Ethernet's type: IPv4 */
        0x45, 0, 0, FRAME_BYTES - ETHER_HDR_LEN,          /* IPv4 with its length */
        0, 0, 0x40, 0, 64, IPPROTO_UDP, 0, 0,             /* not fragmented, TTL 64, checksum to come */
        198, 18, 0, 1, 198, 19, 0, 1,                     /* addresses for benchmarks (RFC 2544) */
        0x10, 0, 0x20, 0, 0, FRAME_BYTES - 34, 0, 0,      /* UDP from port 4096 to 8192, no checksum */
    };
    memset(frame, 0, FRAME_BYTES);
    memcpy(frame, to, ETH_ALEN);
    memcpy(frame + ETH_ALEN, from, ETH_ALEN);
    memcpy(frame + 2 * ETH_ALEN, HEADERS, sizeof HEADERS);
    uint16_t sum = htons(sum_of(frame + ETHER_HDR_LEN, 20));
    memcpy(frame + ETHER_HDR_LEN + 10, &sum, sizeof sum);
    frame[MARK_AT] = is_marked;
}

/* Sends as many frames of the burst, and returns how many the device took. */
static int sent(const struct end *end, struct mmsghdr *burst, int count) {
    int done = sendmmsg(end->socket, burst, count, 0);
    if (done < 0 && errno != EAGAIN && errno != ENOBUFS) fail("sendmmsg");
    return done < 0 ? 0 : done;
}

/* Has the kernel send as many frames; the device counts those that it does not take. */
static int kernel_sent(int program, const uint8_t *frame) {
    union bpf_attr run = {.test = {.prog_fd = program, .repeat = KERNEL_FRAMES, .flags = BPF_F_TEST_XDP_LIVE_FRAMES}};
    run.test.data_in = (uintptr_t)frame;
    run.test.data_size_in = FRAME_BYTES;
    bpf(BPF_PROG_RUN, &run);
    return KERNEL_FRAMES;
}

/* Waits for a frame with the mark; whether it came. */
static int came(const struct end *end) {
    uint8_t frame[FRAME_BYTES];
    return recv(end->socket, frame, sizeof frame, 0) == sizeof frame;
}

/* Waits until so many frames were received, or no more come. */
static void drain(const struct end *to, uint64_t wanted) {
    uint64_t before = 0, there;
    while ((there = received(to)) < wanted && there != before) {
        before = there;
        usleep(PATIENCE_US);
    }
}

static void find_ways(const struct end *from, const struct end *to, struct mmsghdr *marked) {
    uint8_t back[FRAME_BYTES], everyone[] = {255, 255, 255, 255, 255, 255};
    int64_t since = now_ns();
    for (int known = 0; known < KNOWN_AFTER;) {
        if (now_ns() - since > START_NS) {
            fprintf(stderr, "frames do not arrive\n");
            exit(1);
        }
        write_frame(back, known ? SENDER : everyone, RECEIVER, 0);
        if (send(to->socket, back, sizeof back, 0) < 0) fail("send");
        sent(from, marked, 1);
        known = came(to) ? known + 1 : 0;
        usleep(10000);
    }
}

struct work {
    int is_flood, program; /* -1: frames by the socket */
    struct mmsghdr *burst;
    const uint8_t *frame;
};

/* Sends for a while; how many. */
static uint64_t send_for(int64_t length_ns, const struct work *work, const struct end *from, const struct end *to) {
    int64_t start = now_ns();
    uint64_t count = 0;
    do {
        count += work->program < 0 ? sent(from, work->burst, BURST) : kernel_sent(work->program, work->frame);
        if (!work->is_flood) came(to); /* or the count says that it did not */
    } while (now_ns() - start < length_ns);
    return count;
}

static void measure(int64_t length_ns, const struct work *work, const struct end *from, const struct end *to, clockid_t idler) {
    uint64_t base = received(to), count = send_for(length_ns / 2, work, from, to), before = received(to);
    int64_t idle = ns_of(idler), start = now_ns();
    count += send_for(length_ns, work, from, to);
    int64_t length = now_ns() - start;
    uint64_t measured = received(to) - before;
    idle = ns_of(idler) - idle;
    drain(to, base + count);
    uint64_t all = received(to) - base;
    printf("{\"sent\": %lu, \"received\": %lu, \"measured\": %lu, \"ns\": %ld, \"idle_ns\": %ld}\n", count, all, measured, (long)length, (long)idle);
}

int main(int count_of_words, char **words) {
    int is_known = count_of_words == 7 && (!strcmp(words[1], "flood") || !strcmp(words[1], "kernel-flood") || !strcmp(words[1], "bursts"));
    if (!is_known) {
        fprintf(stderr, "usage: frame-sender flood|kernel-flood|bursts FROM TO DEVICE SECONDS IDLER\n");
        return 2;
    }
    struct work work = {.is_flood = strcmp(words[1], "bursts"), .program = -1};
    device = words[4];
    clockid_t idler;
    if (clock_getcpuclockid(atoi(words[6]), &idler)) fail(words[6]);
    struct end to = opened(words[3]), from = opened(words[2]);
    if (!strcmp(words[1], "kernel-flood")) work.program = program();
    uint8_t frames[2][FRAME_BYTES];
    struct iovec bytes[] = {{frames[0], FRAME_BYTES}, {frames[1], FRAME_BYTES}};
    struct mmsghdr burst[BURST] = {0}, *last = &burst[BURST - 1];
    for (int at = 0; at < BURST; at++) burst[at].msg_hdr = (struct msghdr){.msg_iov = &bytes[0], .msg_iovlen = 1};
    last->msg_hdr.msg_iov = &bytes[1];
    write_frame(frames[0], RECEIVER, SENDER, 0);
    write_frame(frames[1], RECEIVER, SENDER, 1);
    find_ways(&from, &to, last);
    frames[1][MARK_AT] = !work.is_flood;
    /* Nothing but the count is asked for any more: the filter would take time for each frame. */
    if (work.is_flood) close(to.socket);
    work.burst = burst;
    work.frame = frames[0];
    measure(atof(words[5]) * 1e9, &work, &from, &to, idler);
    return 0;
}
