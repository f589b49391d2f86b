#ifndef LIMITS_H
#define LIMITS_H

#define MAX_PATH_PARTS 16
#define MAX_HEADER 8192
#define MAX_FRAME 4096

#endif
