// The consumer as processes in Container Apps: `python -m consumer --processes N` in each of so many instances.
// Leases spread the partitions over all of them. Only the probes of the platform are answered; the log goes to the workspace.

@description('Name of the container app.')
param name string

@description('Name of its environment.')
param environmentName string

@description('Region.')
param location string

@description('Tags of all resources.')
param tags object

@description('The image with its registry: infra/consumer/Dockerfile.')
param image string

@description('Address of that registry.')
param registryServer string

@description('Instances.')
param instances int

@description('Processes of an instance, one core each.')
param processes int

@description('Seconds a process may take to stop in order: CONSUMER_SHUTDOWN.')
param shutdown int

@description('Name of the storage account with checkpoints, leases, dead letters and statistics.')
param storageAccountName string

@description('Name of the Log Analytics workspace.')
param workspaceName string

@description('Name of the Application Insights component.')
param applicationInsightsName string

@description('Resource id of the user-assigned identity.')
param identityId string

@description('Client id of the user-assigned identity.')
param identityClientId string

@description('Names of the connections that the identity signs in to.')
param connections array

@description('The settings of the consumer by name.')
param settings object

@description('Id of the subnet that it calls from; empty for the internet.')
param subnetId string

// After CONSUMER_SHUTDOWN a process has 5 s for its last telemetry, and the parent kills it 10 s after; the rest is
// margin. The platform then sends SIGKILL, which costs no record but some writes done twice.
var grace = shutdown + 20

var credentials = toObject(connections, name => '${name}__credential', name => 'managedidentity')
var clientIds = toObject(connections, name => '${name}__clientId', name => identityClientId)
// One port answers for all processes of an instance; '0' is none.
var port = contains(settings, 'CONSUMER_HTTP_PORT') ? settings.CONSUMER_HTTP_PORT : '8080'
// /live depends on the process only: a restart cures neither a hub nor a sink that is away.
var paths = [
  {
    type: 'Startup'
    path: '/live'
    period: 5
    failures: 10
  }
  {
    type: 'Liveness'
    path: '/live'
    period: 10
    failures: 3
  }
  {
    type: 'Readiness'
    path: '/ready'
    period: 10
    failures: 1
  }
]
var probes = [for probe in paths: {
  type: probe.type
  httpGet: {
    path: probe.path
    port: int(port)
  }
  periodSeconds: probe.period
  timeoutSeconds: 5
  failureThreshold: probe.failures
}]
var given = [for setting in items(union({ CONSUMER_HTTP_PORT: port }, credentials, clientIds, settings)): {
  name: setting.key
  value: setting.value
}]

resource storage 'Microsoft.Storage/storageAccounts@2023-05-01' existing = {
  name: storageAccountName
}

resource workspace 'Microsoft.OperationalInsights/workspaces@2023-09-01' existing = {
  name: workspaceName
}

resource applicationInsights 'Microsoft.Insights/components@2020-02-02' existing = {
  name: applicationInsightsName
}

resource containerEnvironment 'Microsoft.App/managedEnvironments@2024-03-01' = {
  name: environmentName
  location: location
  tags: tags
  properties: union({
    // Not log-analytics, which takes the workspace's key.
    appLogsConfiguration: {
      destination: 'azure-monitor'
    }
    workloadProfiles: [
      {
        name: 'Consumption'
        workloadProfileType: 'Consumption'
      }
    ]
  }, empty(subnetId) ? {} : {
    vnetConfiguration: {
      infrastructureSubnetId: subnetId
      internal: true // nothing listens but for the platform's probes
    }
  })
}

resource logs 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'to-workspace'
  scope: containerEnvironment
  properties: {
    workspaceId: workspace.id
    logs: [
      {
        categoryGroup: 'allLogs'
        enabled: true
      }
    ]
  }
}

resource consumer 'Microsoft.App/containerApps@2024-03-01' = {
  name: name
  location: location
  tags: tags
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: {
      '${identityId}': {}
    }
  }
  properties: {
    environmentId: containerEnvironment.id
    workloadProfileName: 'Consumption'
    configuration: {
      activeRevisionsMode: 'Single'
      registries: [
        {
          server: registryServer
          identity: identityId
        }
      ]
    }
    template: {
      terminationGracePeriodSeconds: grace
      containers: [
        {
          name: 'consumer'
          image: image
          args: [
            '--processes'
            string(processes)
          ]
          probes: port == '0' ? [] : probes
          resources: {
            cpu: processes
            memory: '${2 * processes}Gi'
          }
          env: concat(given, [
            {
              name: 'AzureWebJobsStorage__blobServiceUri'
              value: storage.properties.primaryEndpoints.blob
            }
            {
              name: 'AzureWebJobsStorage__tableServiceUri'
              value: storage.properties.primaryEndpoints.table
            }
            {
              name: 'AzureWebJobsStorage__credential'
              value: 'managedidentity'
            }
            {
              name: 'AzureWebJobsStorage__clientId'
              value: identityClientId
            }
            {
              name: 'AZURE_CLIENT_ID'
              value: identityClientId
            }
            {
              name: 'APPLICATIONINSIGHTS_CONNECTION_STRING'
              value: applicationInsights.properties.ConnectionString
            }
            {
              name: 'APPLICATIONINSIGHTS_AUTHENTICATION_STRING'
              value: 'ClientId=${identityClientId};Authorization=AAD'
            }
          ])
        }
      ]
      scale: {
        minReplicas: instances
        maxReplicas: instances
      }
    }
  }
}
