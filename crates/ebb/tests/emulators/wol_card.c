/* Gives network cards of any kind a wake-on-LAN setting, since no virtual card has one: preloaded into a server, it
 * answers the requests ETHTOOL_GWOL and ETHTOOL_SWOL. The setting of card C is the text of the file $WOL_CARDS/C,
 * letters as ethtool has them: p, u, m, b, a, g; without the file, the card cannot do it at all. A test loses the
 * setting by writing "d".
 *
 * cc -shared -fPIC -o wol_card.so wol_card.c
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bit n of the setting. */
static const char letters[] = "pumbag";

static int wake_on_lan(const char *card, struct ethtool_wolinfo *info)
{
    char path[4096], text[16] = "";
    snprintf(path, sizeof path, "%s/%s", getenv("WOL_CARDS"), card);
    FILE *file = fopen(path, "r");
    if (!file) {
        errno = EOPNOTSUPP;
        return -1;
    }
    char *read = fgets(text, sizeof text, file);
    fclose(file);
    if (info->cmd == ETHTOOL_GWOL) {
        info->supported = (1 << (sizeof letters - 1)) - 1;
        info->wolopts = 0;
        for (unsigned bit = 0; letters[bit]; bit++)
            if (read && strchr(text, letters[bit]))
                info->wolopts |= 1 << bit;
        return 0;
    }
    file = fopen(path, "w");
    if (!file)
        return -1;
    for (unsigned bit = 0; letters[bit]; bit++)
        if (info->wolopts & (1 << bit))
            fputc(letters[bit], file);
    return fclose(file);
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (request == SIOCETHTOOL) {
        struct ifreq *card = argument;
        struct ethtool_wolinfo *info = (void *)card->ifr_data;
        if (info->cmd == ETHTOOL_GWOL || info->cmd == ETHTOOL_SWOL)
            return wake_on_lan(card->ifr_name, info);
    }
    int (*real)(int, unsigned long, ...) = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
    return real(fd, request, argument);
}
