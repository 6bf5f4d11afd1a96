/* ipmi_sim knows no DCMI: this module answers Get Power Reading with 214 W. */
#include <string.h>

typedef void (*handler)(void *mc, void *msg, unsigned char *answer, unsigned int *length, void *data);
extern void ipmi_emu_register_group_extension_handler(unsigned char group, handler handler, void *data);

static void power_reading(void *mc, void *msg, unsigned char *answer, unsigned int *length, void *data)
{
    static const unsigned char reading[] = {
        0x00, 0xdc,             /* done, DCMI */
        214, 0, 19, 0, 44, 1,   /* watts now, least, most */
        180, 0,                 /* mean */
        0, 0, 0, 0,             /* time stamp */
        0xe8, 3, 0, 0,          /* sampling period, milliseconds */
        0x40,                   /* measuring */
    };
    memcpy(answer, reading, sizeof reading);
    *length = sizeof reading;
}

int ipmi_sim_module_print_version(void *sys, const char *options)
{
    return 0;
}

int ipmi_sim_module_init(void *sys, const char *options)
{
    ipmi_emu_register_group_extension_handler(0xdc, power_reading, NULL);
    return 0;
}
