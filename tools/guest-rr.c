/* guest-rr - requests and responses between two guests: times of one transaction at a time.
 *
 * usage: guest-rr serve PORT                        answers by TCP and UDP
 *        guest-rr tcp|udp ADDRESS PORT BYTES COUNT  prints: median, 99th of 100 and number of lost requests; times in us
 *
 * A request and its response have BYTES each. A TCP connection begins with the number of bytes. A UDP request without
 * an answer for a second counts as lost.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BYTES_MAX 65000
#define COUNT_MAX 1000000

static char bytes[BYTES_MAX];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static struct sockaddr_in place(const char *address, const char *port) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    if (!inet_aton(address, &place.sin_addr)) fail(address);
    return place;
}

static int opened(int kind) {
    int fd = socket(AF_INET, kind, 0), on = 1;
    if (fd < 0) fail("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    return fd;
}

/* Whether all of `len` bytes came. */
static int receive_all(int fd, void *to, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t got = recv(fd, (char *)to + done, len - done, 0);
        if (got <= 0) return 0;
        done += got;
    }
    return 1;
}

static int send_all(int fd, const void *from, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t sent = send(fd, (const char *)from + done, len - done, MSG_NOSIGNAL);
        if (sent <= 0) return 0;
        done += sent;
    }
    return 1;
}

static void answer_connection(int fd) {
    uint32_t len = 0;
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (!receive_all(fd, &len, sizeof len) || ntohl(len) > BYTES_MAX) return;
    while (receive_all(fd, bytes, ntohl(len)) && send_all(fd, bytes, ntohl(len))) continue;
}

static void serve(const char *port) {
    struct sockaddr_in here = place("0.0.0.0", port), from;
    int udp = opened(SOCK_DGRAM), tcp = opened(SOCK_STREAM);
    if (bind(udp, (void *)&here, sizeof here) || bind(tcp, (void *)&here, sizeof here) || listen(tcp, 8)) fail("bind");
    signal(SIGCHLD, SIG_IGN);
    if (fork() == 0) {
        for (;;) {
            int fd = accept(tcp, NULL, NULL);
            if (fd >= 0 && fork() == 0) {
                answer_connection(fd);
                exit(0);
            }
            if (fd >= 0) close(fd);
        }
    }
    for (;;) {
        socklen_t size = sizeof from;
        ssize_t got = recvfrom(udp, bytes, sizeof bytes, 0, (void *)&from, &size);
        if (got >= 0) sendto(udp, bytes, got, 0, (void *)&from, size);
    }
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static int by_value(const void *one, const void *two) {
    double a = *(const double *)one, b = *(const double *)two;
    return (a > b) - (a < b);
}

int main(int count_of_words, char **words) {
    if (count_of_words == 3 && !strcmp(words[1], "serve")) serve(words[2]);
    if (count_of_words != 6) {
        fprintf(stderr, "usage: guest-rr serve PORT | tcp|udp ADDRESS PORT BYTES COUNT\n");
        return 2;
    }
    int is_tcp = !strcmp(words[1], "tcp"), on = 1, lost = 0, taken = 0;
    long len = atol(words[4]), count = atol(words[5]);
    if (len < 1 || len > BYTES_MAX || count < 1 || count > COUNT_MAX) return 2;
    struct sockaddr_in there = place(words[2], words[3]);
    struct timeval patience = {.tv_sec = is_tcp ? 20 : 1};
    int fd = opened(is_tcp ? SOCK_STREAM : SOCK_DGRAM);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(fd, (void *)&there, sizeof there)) fail("connect");
    uint32_t told = htonl(len);
    if (is_tcp) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (is_tcp && !send_all(fd, &told, sizeof told)) fail("send");
    double *times = calloc(count, sizeof *times);
    if (!times) fail("calloc");
    for (long number = 0; number < count; number++) {
        memcpy(bytes, &number, len < (long)sizeof number ? len : (long)sizeof number);
        double start = now_us();
        if (is_tcp) {
            if (!send_all(fd, bytes, len) || !receive_all(fd, bytes, len)) fail("transaction");
        } else if (send(fd, bytes, len, 0) != len || recv(fd, bytes, sizeof bytes, 0) != len) {
            lost++;
            continue;
        }
        times[taken++] = now_us() - start;
    }
    if (!taken) return 1;
    qsort(times, taken, sizeof *times, by_value);
    printf("%.2f %.2f %d\n", times[taken / 2], times[taken * 99L / 100], lost);
    return 0;
}
